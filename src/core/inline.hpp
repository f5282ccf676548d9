// Functions shared with code that is compiled once per ISA must not have linkable copies: the
// linker keeps one copy of an inline function, possibly the one that needs AVX-512.
#pragma once

#define ROCFLASH_INLINE [[gnu::always_inline]] inline
