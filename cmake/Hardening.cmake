# What makes our own host code harder to misuse, where its cost cannot be measured: canaries on stacks, checked copies
# of the C library, landing pads for indirect branches, tables that are read-only once the program is linked.
# tests/install/hardening.cmake holds what is shipped to it.
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)

# Sanitizers check more and do not go together with checked copies, which need optimisation besides.
if(ROCFLASH_SANITIZE)
  return()
endif()
foreach(option fstack-protector-strong fcf-protection=full)
  string(MAKE_C_IDENTIFIER ROCFLASH_HAS_${option} has)
  check_cxx_compiler_flag(-${option} ${has})
  if(${has})
    target_compile_options(rocflash_options INTERFACE -${option})
  endif()
endforeach()

# Level 3 checks copies into memory whose size only the running program knows; glibc has it from 2.34 on, and takes 2
# for the most before.
if(CMAKE_BUILD_TYPE MATCHES "^(Release|RelWithDebInfo|MinSizeRel)$")
  set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  check_cxx_source_compiles("#include <cstring>\nint main() { return 0; }" ROCFLASH_HAS_FORTIFY_3)
  unset(CMAKE_REQUIRED_FLAGS)
  set(fortify 2)
  if(ROCFLASH_HAS_FORTIFY_3)
    set(fortify 3)
  endif()
  target_compile_options(rocflash_options INTERFACE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${fortify})
endif()

target_link_options(rocflash_options INTERFACE -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
