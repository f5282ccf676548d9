# Rules of `make install`: library, headers, command, CMake package, pkg-config file, licenses and
# documents.
# Packages are built from the components: cmake/Packages.cmake, packaging/wheel.py.
include(CMakePackageConfigHelpers)

# Users compile against the header, so its version must be that of the packages.
file(STRINGS ${PROJECT_SOURCE_DIR}/include/rocflash/rocflash.h version_lines
  REGEX "^#define ROCFLASH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
string(REGEX REPLACE "[^0-9;]" "" version_numbers "${version_lines}")
list(JOIN version_numbers "." header_version)
if(NOT header_version VERSION_EQUAL PROJECT_VERSION)
  message(FATAL_ERROR
    "rocflash.h has version ${header_version}, VERSION has ${PROJECT_VERSION}; scripts/set_version.sh sets both")
endif()

# A build of `make verify` may have no GPU kernels, so it is not installed.
if(ROCFLASH_GPU_ARCHS STREQUAL "native")
  install(CODE "message(FATAL_ERROR \"This build has kernels for the GPUs of one machine only (ROCFLASH_GPU_ARCHS=native) and is not \"
    \"installed or packaged. `make install` compiles those of all GPUs first; by hand: cmake -DROCFLASH_GPU_ARCHS=all \"
    \"${PROJECT_BINARY_DIR}, or name those that are wanted.\")" ALL_COMPONENTS)
endif()

install(TARGETS rocflash EXPORT rocflash
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT library
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
  PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rocflash COMPONENT development)

if(ROCFLASH_BUILD_CLI)
  # Finds the library relative to the command, so that the tree can be moved. The build tree's
  # command has the same rpath: one that CMake rewrites on installation ends with a colon until
  # then, and its empty last element is the current directory, from which a library would be loaded.
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
set(pkgconfig_url "")
if(repository_address)
  set(pkgconfig_url "URL: ${repository_address}\n")
endif()
configure_file(cmake/rocflash.pc.in ${PROJECT_BINARY_DIR}/rocflash.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/rocflash.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

if(ROCFLASH_BUILD_CLI)
  set(rocflash_manual_link "")
  if(repository_address)
    set(rocflash_manual_link ", ${repository_address}")
  endif()
  configure_file(packaging/rocflash.1.in ${PROJECT_BINARY_DIR}/rocflash.1 @ONLY)
  # The Debian packages have the page compressed: cmake/Packages.cmake.
  install(FILES ${PROJECT_BINARY_DIR}/rocflash.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT manual)
  install(FILES packaging/completions/rocflash.bash RENAME rocflash
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT completions)
  install(FILES packaging/completions/_rocflash DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions
    COMPONENT completions)
  install(FILES packaging/completions/rocflash.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
    COMPONENT completions)
endif()

install(FILES
  README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documents)
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT documents
  PATTERN .clang-tidy EXCLUDE)

# Programs of others need the library in the loader's search path. Packages (components, DESTDIR)
# see to that themselves. Windows searches the program's own directory, where the library is too.
if(WIN32)
  return()
endif()
install(CODE "
  if(NOT CMAKE_INSTALL_COMPONENT AND \"\$ENV{DESTDIR}\" STREQUAL \"\")
    execute_process(COMMAND sh ${PROJECT_SOURCE_DIR}/scripts/loader_note.sh \${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR})
  endif()" ALL_COMPONENTS)
