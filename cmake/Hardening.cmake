# Hardening of the host code without measurable cost: stack canaries, checked copies of the C
# library, landing pads for indirect branches, read-only relocations. tests/install/hardening.cmake
# checks the installed files.
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)

# Sanitizers check more and are incompatible with checked copies, which also need optimization.
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

# Level 3 also checks copies to memory whose size is known only at run time; glibc has it from 2.34
# on, and treats it as 2 before.
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

# mingw-w64 has the functions of canaries and checked copies in GCC's libssp, which this option
# links. LLD sets the flags for randomized addresses and non-executable data by default.
if(WIN32)
  target_link_options(rocflash_options INTERFACE -fstack-protector-strong)
  # Two builds have the same bytes.
  target_link_options(rocflash_options INTERFACE -Wl,--no-insert-timestamp)
else()
  target_link_options(rocflash_options INTERFACE -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
endif()
