// The subcommands. Each adds its options to the command line and returns the function that runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "device.hpp"
#include "exit_status.hpp"

namespace rocflash::cli {

// Counts and sizes: the product of two of them does not overflow.
inline CLI::Range positive() { return {std::int64_t{1}, std::int64_t{INT32_MAX}}; }

using Command = std::function<int()>;

Command add_info(CLI::App& app);
Command add_verify(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_kernels(CLI::App& app);
Command add_explain(CLI::App& app);
Command add_doctor(CLI::App& app);

// Adds --json FILE.
void add_json_option(CLI::App& command, std::string& file);
// A command whose only option is --json; `run` gets the file.
Command add_json_command(CLI::App& app, const std::string& name, const std::string& about,
                         int (*run)(const std::string& json_file));

}  // namespace rocflash::cli
