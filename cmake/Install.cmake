# What `make install` puts where: library, headers, command, CMake package, pkg-config file, licences and documents.
# The components are what packages are cut from: cmake/Packages.cmake, packaging/wheel.py.
include(CMakePackageConfigHelpers)

# The header is what users compile against, so its version must be the one that packages announce.
file(STRINGS ${PROJECT_SOURCE_DIR}/include/rocflash/rocflash.h version_lines
  REGEX "^#define ROCFLASH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
string(REGEX REPLACE "[^0-9;]" "" version_numbers "${version_lines}")
list(JOIN version_numbers "." header_version)
if(NOT header_version VERSION_EQUAL PROJECT_VERSION)
  message(FATAL_ERROR
    "rocflash.h says version ${header_version}, CMakeLists.txt says ${PROJECT_VERSION}; they must agree")
endif()

# What `make verify` builds for a first result may have kernels for no GPU at all. It stays where it is.
if(ROCFLASH_GPU_ARCHS STREQUAL "native")
  install(CODE "message(FATAL_ERROR \"This build has kernels for the GPUs of one machine only (ROCFLASH_GPU_ARCHS=native) and is not \"
    \"installed or packaged. `make install` compiles those of all GPUs first; by hand: cmake -DROCFLASH_GPU_ARCHS=all \"
    \"${PROJECT_BINARY_DIR}, or name those that are wanted.\")" ALL_COMPONENTS)
endif()

install(TARGETS rocflash EXPORT rocflash
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
  PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rocflash COMPONENT development)

if(ROCFLASH_BUILD_CLI)
  # Finds the library beside it, wherever the tree is moved. The build tree's command has the same path from the start:
  # one that CMake rewrites on installation ends with a colon until then, and the empty element behind it is the current
  # folder, so a library that lies there by chance would be taken.
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set(command_rpath "$ORIGIN/${bin_to_lib}" "$ORIGIN/../lib")
  list(REMOVE_DUPLICATES command_rpath)
  set_target_properties(rocflash_cli PROPERTIES INSTALL_RPATH "${command_rpath}" BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS rocflash_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
endif()

set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/rocflash)
install(EXPORT rocflash NAMESPACE rocflash:: FILE rocflashTargets.cmake DESTINATION ${package_directory}
  COMPONENT development)
configure_package_config_file(cmake/rocflashConfig.cmake.in ${PROJECT_BINARY_DIR}/rocflashConfig.cmake
  INSTALL_DESTINATION ${package_directory} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the ABI.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rocflashConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/rocflashConfig.cmake ${PROJECT_BINARY_DIR}/rocflashConfigVersion.cmake
  DESTINATION ${package_directory} COMPONENT development)

# Paths in the pkg-config file are relative to itself, so that the tree can be moved.
file(RELATIVE_PATH pkgconfig_to_include
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/rocflash.pc.in ${PROJECT_BINARY_DIR}/rocflash.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/rocflash.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

install(FILES
  README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documents)
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documents)
