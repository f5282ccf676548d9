# Builds the examples with a compiler and pkg-config, without CMake.
if(NOT PKG_CONFIG)
  message("skipped: pkg-config is not installed")
  return()
endif()
set(ENV{PKG_CONFIG_PATH} ${PREFIX}/${LIBDIR}/pkgconfig)
function(query out)
  execute_process(COMMAND ${PKG_CONFIG} ${ARGN} rocflash
    OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(output UNIX_COMMAND "${output}")
  set(${out} ${output} PARENT_SCOPE)
endfunction()
query(version --modversion)
query(cflags --cflags)
query(libs --libs)
if(NOT version STREQUAL VERSION)
  message(SEND_ERROR "pkg-config reports version ${version}, not ${VERSION}")
endif()

function(build_and_run compiler standard source)
  set(program ${SCRATCH}/pkg_config_${standard})
  execute_process(
    COMMAND ${compiler} -std=${standard} -Wall -Wextra -Werror ${cflags} ${PREFIX}/${DOCDIR}/examples/${source}
      ${libs} -Wl,-rpath,${PREFIX}/${LIBDIR} -o ${program}
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${program} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  message("${output}")
  if(NOT output MATCHES "first query: 0.000\nlast query: ")
    message(SEND_ERROR "${source} printed unexpected output")
  endif()
endfunction()
build_and_run(${CC} c11 attention.c)
build_and_run(${CXX} c++20 attention.cpp)
