// Carries the report's two files. Apart from the other sources, which are compiled as one: this one
// is assembled again with each change of a kernel.
#include "kernel_report.hpp"

#ifdef ROCFLASH_KERNEL_REPORT
#define ROCFLASH_EMBED(name, file)                       \
  asm(".pushsection .rodata\n" #name ": .incbin \"" file \
      "\"\n"                                             \
      ".byte 0\n.popsection");                           \
  extern "C" const char name[];
ROCFLASH_EMBED(rocflash_report_text, ROCFLASH_KERNEL_REPORT "/report.txt")
ROCFLASH_EMBED(rocflash_report_json, ROCFLASH_KERNEL_REPORT "/report.json")
#endif

namespace rocflash::cli {

#ifdef ROCFLASH_KERNEL_REPORT
const char* kernel_report_text() { return rocflash_report_text; }
const char* kernel_report_json() { return rocflash_report_json; }
#else
const char* kernel_report_text() { return nullptr; }
const char* kernel_report_json() { return nullptr; }
#endif

}  // namespace rocflash::cli
