# The compile options of all targets: warnings and, on request, sanitizers.
add_library(rocflash_options INTERFACE)
target_compile_options(rocflash_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  # GCC warns about branches that a dtype excludes at run time, and std::sort's inner threshold, as
  # if they were taken, and GCC 12 reports overlaps in its own std::string.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds> $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  $<$<BOOL:${ROCFLASH_WERROR}>:-Werror>)
if(ROCFLASH_SANITIZE)
  target_compile_options(rocflash_options INTERFACE
    -fsanitize=${ROCFLASH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(rocflash_options INTERFACE -fsanitize=${ROCFLASH_SANITIZE})
endif()
