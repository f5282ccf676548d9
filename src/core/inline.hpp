// Functions shared with code that is compiled once per instruction set must never exist as a
// linkable copy: the linker keeps one copy of an inline function, and it could keep the one that
// needs AVX-512.
#pragma once

#define ROCFLASH_INLINE [[gnu::always_inline]] inline
