// --device of all commands: one way to name a device, and the simulator as one of them.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <rocflash/rocflash.hpp>
#include <string>

namespace rocflash::cli {

// Adds --device and its validation; the default is auto.
CLI::Option* add_device_option(CLI::App& command, std::string& device);

// Resolves auto to the best device (AMD, then NVIDIA, then the CPU) and starts the simulator for
// sim:ARCH. Other names are returned unchanged. Call it before any query of GPUs: a process opens
// its drivers once.
std::string resolve_device(const std::string& device);

// The simulator's libamdhip64.so: ROCFLASH_SIM_LIBRARY, else the one that was built with this
// command.
std::filesystem::path simulator_library();

// "hip:0", "cuda:1" or "cpu".
std::string device_name(const DLDevice& device);

}  // namespace rocflash::cli
