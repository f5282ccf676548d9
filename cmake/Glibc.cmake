# rocflash_serve_old_glibc(target): links a shipped target so that it runs on systems with an older
# glibc than this one.
#
# The target is linked against stubs with the symbols of that version (src/platform/glibc/stubs.sh),
# so a call that it lacks is an undefined reference. Tests and tools are linked as usual.
set(ROCFLASH_GLIBC "2.17" CACHE STRING
  "The oldest glibc that library and command run on, such as 2.17 or 2.28; none: whatever this system's gives")
if(NOT ROCFLASH_GLIBC MATCHES "^(none|2\\.[0-9]+)$")
  message(FATAL_ERROR "ROCFLASH_GLIBC is ${ROCFLASH_GLIBC}; it must be none, or a version such as 2.17")
endif()

set(glibc_directory "")
# The runtime of sanitizers needs the glibc of this system. Other C libraries have no symbol
# versions.
if(NOT ROCFLASH_GLIBC STREQUAL "none" AND NOT ROCFLASH_SANITIZE AND CMAKE_SYSTEM_NAME STREQUAL "Linux"
    AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
  include(CheckCSourceCompiles)
  check_c_source_compiles("#include <features.h>\n#ifndef __GLIBC__\n#error\n#endif\nint main(void) { return 0; }" ROCFLASH_HAS_GLIBC)
  find_program(ROCFLASH_BASH NAMES bash)
  find_program(ROCFLASH_READELF NAMES readelf)
  mark_as_advanced(ROCFLASH_BASH ROCFLASH_READELF)
  if(ROCFLASH_HAS_GLIBC AND ROCFLASH_BASH AND ROCFLASH_READELF)
    set(glibc_directory ${PROJECT_BINARY_DIR}/glibc-${ROCFLASH_GLIBC})
    set(glibc_sources ${PROJECT_SOURCE_DIR}/src/platform/glibc)
    separate_arguments(glibc_flags NATIVE_COMMAND "${CMAKE_SHARED_LINKER_FLAGS}")
    if(CMAKE_C_COMPILER_TARGET)
      list(APPEND glibc_flags --target=${CMAKE_C_COMPILER_TARGET})
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${glibc_sources}/stubs.sh)
    execute_process(COMMAND ${ROCFLASH_BASH} ${glibc_sources}/stubs.sh ${CMAKE_C_COMPILER} ${ROCFLASH_GLIBC} ${glibc_directory}
      ${glibc_flags}
      COMMAND_ERROR_IS_FATAL ANY)
    add_library(rocflash_glibc_shims OBJECT ${glibc_sources}/shims.c)
    add_library(rocflash_glibc_start OBJECT ${glibc_sources}/start.c)
    foreach(shims rocflash_glibc_shims rocflash_glibc_start)
      target_link_libraries(${shims} PRIVATE rocflash_options)
      target_compile_options(${shims} PRIVATE -fvisibility=hidden)
    endforeach()
    message(STATUS "Library and command run on glibc ${ROCFLASH_GLIBC} and newer")
  else()
    message(STATUS "Library and command run on this system's C library and newer: no glibc, bash or readelf")
  endif()
endif()

function(rocflash_serve_old_glibc target)
  if(NOT glibc_directory)
    return()
  endif()
  target_link_options(${target} PRIVATE -L${glibc_directory})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:$<TARGET_OBJECTS:rocflash_glibc_shims>> $<BUILD_INTERFACE:-lpthread>
    $<BUILD_INTERFACE:-ldl>)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${glibc_directory}/symbols.txt)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_link_options(${target} PRIVATE -Wl,--wrap=__libc_start_main)
    target_link_libraries(${target} PRIVATE $<TARGET_OBJECTS:rocflash_glibc_start>)
  endif()
endfunction()
