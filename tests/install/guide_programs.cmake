# Projects with nothing but the CMake lines of the C and C++ guide build and run its programs. No
# language standard is set: the imported target has it.
file(READ ${SOURCE}/docs/guides/c-cpp.md guide)
string(REGEX MATCH "```cmake\n(find_package[^`]*)```" found "${guide}")
set(lines "${CMAKE_MATCH_1}")
if(NOT lines MATCHES "target_link_libraries\\(program ")
  message(FATAL_ERROR "docs/guides/c-cpp.md has no CMake lines for a target `program`")
endif()
string(REPLACE "find_package(rocflash REQUIRED)" "find_package(rocflash REQUIRED)\nadd_executable(program program.\${suffix})"
  lines "${lines}")

function(build_and_run language suffix compiler)
  set(directory ${SCRATCH}/guide_${suffix})
  file(REMOVE_RECURSE ${directory})
  file(COPY_FILE ${SOURCE}/examples/attention.${suffix} ${directory}.${suffix})
  file(MAKE_DIRECTORY ${directory})
  file(RENAME ${directory}.${suffix} ${directory}/program.${suffix})
  file(WRITE ${directory}/CMakeLists.txt
    "cmake_minimum_required(VERSION 3.25)\nproject(program LANGUAGES ${language})\nset(suffix ${suffix})\n${lines}")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${directory} -B ${directory}/build -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${PREFIX}
      -DCMAKE_${language}_COMPILER=${compiler}
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${directory}/build COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${directory}/build/program OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output MATCHES "first query: 0.000\nlast query: ")
    message(SEND_ERROR "the guide's ${language} program printed:\n${output}")
  endif()
endfunction()

build_and_run(CXX cpp ${GXX})
build_and_run(C c ${CC})
