# The guide shows the programs in examples/, which other tests compile and run.
file(READ ${SOURCE}/docs/guides/c-cpp.md guide)
foreach(example attention.c attention.cpp)
  file(READ ${SOURCE}/examples/${example} text)
  string(FIND "${guide}" "${text}" position)
  if(position EQUAL -1)
    message(SEND_ERROR "docs/guides/c-cpp.md does not show examples/${example} verbatim")
  endif()
endforeach()
