// What the compiler made of each GPU kernel of this build, as kernels/build/report.cpp wrote it
// down; null in a build without kernels.
#pragma once

namespace rocflash::cli {

const char* kernel_report_text();
const char* kernel_report_json();

}  // namespace rocflash::cli
