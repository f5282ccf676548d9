// The subcommands. Each adds its options to the command line and hands back what to do when it is
// the one chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>

namespace rocflash::cli {

// The exit status by convention: all is well, something failed, the command line makes no sense.
inline constexpr int exit_good = 0, exit_failed = 1, exit_usage = 2;

// Counts and sizes: from 1 to what still multiplies without overflow where two of them meet.
inline CLI::Range positive() { return {std::int64_t{1}, std::int64_t{INT32_MAX}}; }

using Command = std::function<int()>;

Command add_info(CLI::App& app);
Command add_verify(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_report(CLI::App& app);

// --device, with the names that are allowed.
void add_device_option(CLI::App& command, std::string& device);
// The device that "auto" stands for: the first GPU that can be used, else the CPU. Others are
// themselves.
std::string chosen_device(const std::string& device);
// --json FILE.
void add_json_option(CLI::App& command, std::string& file);
// A command that has no other option; `run` gets its file.
Command add_json_command(CLI::App& app, const std::string& name, const std::string& about,
                         int (*run)(const std::string& json_file));

}  // namespace rocflash::cli
