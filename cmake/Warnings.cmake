# One target carries what every target of ours is compiled with: warnings and, when asked for, sanitizers.
add_library(rocflash_options INTERFACE)
target_compile_options(rocflash_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  $<$<BOOL:${ROCFLASH_WERROR}>:-Werror>)
if(ROCFLASH_SANITIZE)
  target_compile_options(rocflash_options INTERFACE
    -fsanitize=${ROCFLASH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(rocflash_options INTERFACE -fsanitize=${ROCFLASH_SANITIZE})
endif()
