# Debian packages with CPack: librocflash0, librocflash-dev and rocflash, from the components of
# cmake/Install.cmake.
#   cpack -G DEB --config build/CPackConfig.cmake -B directory
# The library is in /usr/lib, not in the multiarch directory, like the builds with other prefixes;
# the packages are for one architecture at a time.
if(NOT PROJECT_IS_TOP_LEVEL OR ROCFLASH_SANITIZE OR NOT ROCFLASH_BUILD_CLI OR WIN32)
  return()
endif()

set(ROCFLASH_DEB_MAINTAINER "rocflash developers <maintainers@rocflash.invalid>" CACHE STRING
  "The Maintainer field of the Debian packages")

# Debian requires these in each package; `make install` does not need them.
set(debian_directory ${PROJECT_BINARY_DIR}/debian)
configure_file(packaging/debian/changelog.in ${debian_directory}/changelog.Debian @ONLY)
find_program(ROCFLASH_GZIP gzip)
mark_as_advanced(ROCFLASH_GZIP)
if(NOT ROCFLASH_GZIP)
  return()
endif()
execute_process(COMMAND ${ROCFLASH_GZIP} -9nkf ${debian_directory}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
configure_file(${PROJECT_BINARY_DIR}/rocflash.1 ${debian_directory}/rocflash.1 COPYONLY)
execute_process(COMMAND ${ROCFLASH_GZIP} -9nkf ${debian_directory}/rocflash.1 COMMAND_ERROR_IS_FATAL ANY)
set(debian_packages_library librocflash${PROJECT_VERSION_MAJOR})
set(debian_packages_development librocflash-dev)
set(debian_packages_command rocflash)
foreach(group library development command)
  install(FILES packaging/debian/copyright ${debian_directory}/changelog.Debian.gz
    DESTINATION share/doc/${debian_packages_${group}} COMPONENT debian_${group} EXCLUDE_FROM_ALL)
endforeach()
install(FILES ${debian_directory}/rocflash.1.gz DESTINATION share/man/man1 COMPONENT debian_command EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME rocflash)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
if(repository_address)
  set(CPACK_PACKAGE_HOMEPAGE_URL ${repository_address}) # the field Homepage
endif()
set(CPACK_PACKAGE_CONTACT ${ROCFLASH_DEB_MAINTAINER})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL library development command completions documents debian_library debian_development debian_command)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(exactly "(= ${PROJECT_VERSION}-1)")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${debian_packages_library})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/packaging/debian/triggers)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "The library: attention, forward and backward, with a C ABI: on x86-64 CPUs,
and on AMD and NVIDIA GPUs through the driver that is installed. Every option
is honored or rejected by name, never approximated.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME librocflash-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${debian_packages_library} ${exactly}, libdlpack-dev")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "For development: headers for C and C++, the CMake package, the pkg-config file,
documents and examples.")

set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME rocflash)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_COMMAND_PACKAGE_DEPENDS "${debian_packages_library} ${exactly}")
set(CPACK_DEBIAN_COMMAND_DESCRIPTION "The command: says what a machine offers, compares its devices with a reference
in double precision, and measures them.")

include(CPack)
foreach(group library development command)
  cpack_add_component_group(${group})
  cpack_add_component(${group} GROUP ${group})
  cpack_add_component(debian_${group} GROUP ${group})
endforeach()
cpack_add_component(documents GROUP development)
cpack_add_component(completions GROUP command)
