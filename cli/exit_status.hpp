// Exit statuses of the command, in a separate header: files without options need no CLI11.
#pragma once

namespace rocflash::cli {

// Success, a failed check or call, an invalid command line.
inline constexpr int exit_good = 0, exit_failed = 1, exit_usage = 2;

}  // namespace rocflash::cli
