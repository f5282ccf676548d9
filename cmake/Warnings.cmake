# One target carries what every target of ours is compiled with: warnings and, when asked for, sanitizers.
add_library(rocflash_options INTERFACE)
target_compile_options(rocflash_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  # GCC judges branches that a dtype excludes at run time, and std::sort's inner threshold, as if they were taken.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>
  $<$<BOOL:${ROCFLASH_WERROR}>:-Werror>)
if(ROCFLASH_SANITIZE)
  target_compile_options(rocflash_options INTERFACE
    -fsanitize=${ROCFLASH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(rocflash_options INTERFACE -fsanitize=${ROCFLASH_SANITIZE})
endif()
