# Installs into an empty prefix and checks the installed files.
file(REMOVE_RECURSE ${PREFIX})
set(ENV{ROCFLASH_LDCONFIG} ${SOURCE}/tests/install/ldconfig.sh)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} OUTPUT_VARIABLE output
  COMMAND_ERROR_IS_FATAL ANY)
if(NOT output MATCHES "${LIBDIR} is not in the loader's search path")
  message(SEND_ERROR "the installation does not say how programs find the library:\n${output}")
endif()

set(expected
  ${INCLUDEDIR}/rocflash/rocflash.h ${INCLUDEDIR}/rocflash/rocflash.hpp
  ${LIBDIR}/librocflash.so ${LIBDIR}/librocflash.so.${VERSION}
  ${LIBDIR}/cmake/rocflash/rocflashConfig.cmake ${LIBDIR}/cmake/rocflash/rocflashConfigVersion.cmake
  ${LIBDIR}/pkgconfig/rocflash.pc
  ${DOCDIR}/README.md ${DOCDIR}/CHANGELOG.md ${DOCDIR}/LICENSE-MIT ${DOCDIR}/LICENSE-APACHE
  ${DOCDIR}/docs/guides/c-cpp.md ${DOCDIR}/examples/attention.c)
if(HAS_CLI)
  list(APPEND expected ${BINDIR}/rocflash ${MANDIR}/man1/rocflash.1
    ${DATADIR}/bash-completion/completions/rocflash ${DATADIR}/zsh/site-functions/_rocflash
    ${DATADIR}/fish/vendor_completions.d/rocflash.fish)
endif()
foreach(file IN LISTS expected)
  if(NOT EXISTS ${PREFIX}/${file})
    message(SEND_ERROR "not installed: ${file}")
  endif()
endforeach()

# The installed command must find the installed library without environment variables.
if(HAS_CLI)
  set(ENV{LD_LIBRARY_PATH} "")
  execute_process(COMMAND ${PREFIX}/${BINDIR}/rocflash info COMMAND_ERROR_IS_FATAL ANY)
endif()

# Completions offer every command, and the page describes it.
find_program(BASH_PROGRAM bash)
if(HAS_CLI AND BASH_PROGRAM)
  execute_process(COMMAND ${BASH_PROGRAM} ${SOURCE}/tests/install/completion.sh
      ${PREFIX}/${BINDIR}/rocflash ${PREFIX}/${DATADIR}/bash-completion/completions/rocflash ${PREFIX}/${MANDIR}/man1/rocflash.1
    COMMAND_ERROR_IS_FATAL ANY)
endif()

# Installed files must not contain build paths.
file(GLOB_RECURSE texts
  ${PREFIX}/${LIBDIR}/cmake/*.cmake ${PREFIX}/${LIBDIR}/pkgconfig/*.pc ${PREFIX}/${INCLUDEDIR}/rocflash/*)
foreach(file IN LISTS texts)
  file(READ ${file} text)
  foreach(path ${SOURCE} ${BUILD})
    string(FIND "${text}" "${path}" found)
    if(NOT found EQUAL -1)
      message(SEND_ERROR "${file} contains ${path}")
    endif()
  endforeach()
endforeach()
