# Objects compiled for one instruction set must not define weak symbols. The linker keeps one copy
# of an inline function or template for the whole library; one from such an object would make older
# CPUs execute unsupported instructions. See src/core/inline.hpp.
string(REPLACE "|" ";" objects "${OBJECTS}")
if(NOT objects)
  message(FATAL_ERROR "no objects given")
endif()
foreach(object IN LISTS objects)
  execute_process(COMMAND ${NM} --defined-only --demangle ${object}
    OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE ";" "," symbols "${symbols}")
  string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
  foreach(line IN LISTS lines)
    # DW.ref.* is a pointer to the exception personality: data, identical in every object.
    if(line MATCHES "^[0-9a-f]* [WVu] " AND NOT line MATCHES " V DW\\.ref\\.")
      message(SEND_ERROR "${object} defines a linkable inline copy: ${line}")
    endif()
  endforeach()
endforeach()
list(LENGTH objects count)
message(STATUS "${count} objects checked")
