# Each installed header compiles on its own, in every supported language standard, with warnings as
# errors.
set(include ${PREFIX}/${INCLUDEDIR})
function(check_header header language standard compiler)
  set(source ${SCRATCH}/header_${standard}.${language})
  file(WRITE ${source} "#include <rocflash/${header}>\n")
  execute_process(
    COMMAND ${compiler} -std=${standard} -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -fsyntax-only
      -I${include} ${source}
    RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(SEND_ERROR "${header} does not compile as ${standard}")
  endif()
endfunction()

foreach(standard c11 c17)
  check_header(rocflash.h c ${standard} ${CC})
endforeach()
foreach(standard c++11 c++17 c++20)
  check_header(rocflash.h cpp ${standard} ${CXX})
endforeach()
check_header(rocflash.hpp cpp c++20 ${CXX})
