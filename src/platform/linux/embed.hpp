// ROCFLASH_EMBED(name, end, file): the file's bytes between the symbols `name` and `end`, then a
// null byte.
#pragma once

#define ROCFLASH_EMBED(name, end, file)                                     \
  asm(".pushsection .rodata.rocflash_kernels,\"a\",@progbits\n"             \
      ".globl " #name ", " #end                                             \
      "\n"                                                                  \
      ".hidden " #name ", " #end "\n" #name ": .incbin \"" file "\"\n" #end \
      ": .byte 0\n"                                                         \
      ".popsection")
