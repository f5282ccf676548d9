// ROCFLASH_EMBED(name, end, file): the file's bytes between the symbols `name` and `end`, then a
// null byte. A symbol of a DLL is not visible unless it is exported.
#pragma once

#define ROCFLASH_EMBED(name, end, file)                                           \
  asm(".pushsection .rdata$rocflash_kernels,\"dr\"\n"                             \
      ".globl " #name "\n.globl " #end "\n" #name ": .incbin \"" file "\"\n" #end \
      ": .byte 0\n"                                                               \
      ".popsection")
