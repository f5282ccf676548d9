# A project finds rocflash with find_package, and builds and runs the C and the C++ example.
set(build ${SCRATCH}/cmake_package)
file(REMOVE_RECURSE ${build})
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${PREFIX}/${DOCDIR}/examples -B ${build} -G ${GENERATOR}
    -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${PREFIX}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${build} --output-on-failure --no-tests=error
  COMMAND_ERROR_IS_FATAL ANY)

# An incompatible version must not be found.
file(WRITE ${build}/future/CMakeLists.txt
  "cmake_minimum_required(VERSION 3.25)\nproject(future C)\nfind_package(rocflash 99 REQUIRED)\n")
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${build}/future -B ${build}/future/build -G ${GENERATOR}
    -DCMAKE_C_COMPILER=${CC} -DCMAKE_PREFIX_PATH=${PREFIX}
  RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
if(result EQUAL 0)
  message(SEND_ERROR "find_package(rocflash 99) found version ${VERSION}")
endif()
