// Compiler statistics of each GPU kernel of this build, written by kernels/build/report.cpp; null
// in a build without kernels.
#pragma once

namespace rocflash::cli {

const char* kernel_report_text();
const char* kernel_report_json();

}  // namespace rocflash::cli
