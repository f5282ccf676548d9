// Embeds the report's two files. A source of its own, since it is rebuilt after each change of a
// kernel.
#include "kernel_report.hpp"

#ifdef ROCFLASH_KERNEL_REPORT
#include ROCFLASH_EMBED_HEADER

ROCFLASH_EMBED(rocflash_report_text, rocflash_report_text_end,
               ROCFLASH_KERNEL_REPORT "/report.txt");
ROCFLASH_EMBED(rocflash_report_json, rocflash_report_json_end,
               ROCFLASH_KERNEL_REPORT "/report.json");
extern "C" [[gnu::visibility("hidden")]] const char rocflash_report_text[], rocflash_report_json[];
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
