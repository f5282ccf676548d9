# Installs into an empty prefix and looks whether everything a user needs has arrived.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} COMMAND_ERROR_IS_FATAL ANY)

set(expected
  ${INCLUDEDIR}/rocflash/rocflash.h ${INCLUDEDIR}/rocflash/rocflash.hpp
  ${LIBDIR}/librocflash.so ${LIBDIR}/librocflash.so.${VERSION}
  ${LIBDIR}/cmake/rocflash/rocflashConfig.cmake ${LIBDIR}/cmake/rocflash/rocflashConfigVersion.cmake
  ${LIBDIR}/pkgconfig/rocflash.pc
  ${DOCDIR}/README.md ${DOCDIR}/CHANGELOG.md ${DOCDIR}/LICENSE-MIT ${DOCDIR}/LICENSE-APACHE
  ${DOCDIR}/docs/c-api.md ${DOCDIR}/examples/attention.c)
if(HAS_CLI)
  list(APPEND expected ${BINDIR}/rocflash)
endif()
foreach(file IN LISTS expected)
  if(NOT EXISTS ${PREFIX}/${file})
    message(SEND_ERROR "not installed: ${file}")
  endif()
endforeach()

# The installed command must find the installed library without help from the environment.
if(HAS_CLI)
  set(ENV{LD_LIBRARY_PATH} "")
  execute_process(COMMAND ${PREFIX}/${BINDIR}/rocflash info COMMAND_ERROR_IS_FATAL ANY)
endif()

# Nothing installed may remember where it was built.
file(GLOB_RECURSE texts
  ${PREFIX}/${LIBDIR}/cmake/*.cmake ${PREFIX}/${LIBDIR}/pkgconfig/*.pc ${PREFIX}/${INCLUDEDIR}/rocflash/*)
foreach(file IN LISTS texts)
  file(READ ${file} text)
  foreach(place ${SOURCE} ${BUILD})
    string(FIND "${text}" "${place}" found)
    if(NOT found EQUAL -1)
      message(SEND_ERROR "${file} mentions ${place}")
    endif()
  endforeach()
endforeach()
