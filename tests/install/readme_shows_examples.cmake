# The programs shown in the README are those in examples/, which are compiled and run by other tests.
file(READ ${SOURCE}/README.md readme)
foreach(example attention.c attention.cpp)
  file(READ ${SOURCE}/examples/${example} text)
  string(FIND "${readme}" "${text}" place)
  if(place EQUAL -1)
    message(SEND_ERROR "README.md does not show examples/${example} as it is")
  endif()
endforeach()
