# rocflash_compile_together(target): compiles all sources of a target as one.
#
# The command's ten sources, and those of verify/, spend most of their time on the same headers (CLI11, fmt, JSON, the C++ face);
# together they take a fifth of that. -DCMAKE_UNITY_BUILD=OFF compiles each alone, as `make lint` has to. Names in unnamed namespaces must
# therefore be distinct within such a target.
function(rocflash_compile_together target)
  if(NOT DEFINED CMAKE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
endfunction()
