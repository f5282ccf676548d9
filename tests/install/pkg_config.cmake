# A plain compiler and pkg-config: the way of Makefiles.
if(NOT PKG_CONFIG)
  message("skipped: pkg-config is not installed")
  return()
endif()
set(ENV{PKG_CONFIG_PATH} ${PREFIX}/${LIBDIR}/pkgconfig)
function(ask out)
  execute_process(COMMAND ${PKG_CONFIG} ${ARGN} rocflash
    OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(answer UNIX_COMMAND "${answer}")
  set(${out} ${answer} PARENT_SCOPE)
endfunction()
ask(version --modversion)
ask(cflags --cflags)
ask(libs --libs)
if(NOT version STREQUAL VERSION)
  message(SEND_ERROR "pkg-config says version ${version}, not ${VERSION}")
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
    message(SEND_ERROR "${source} printed something else than expected")
  endif()
endfunction()
build_and_run(${CC} c11 attention.c)
build_and_run(${CXX} c++20 attention.cpp)
