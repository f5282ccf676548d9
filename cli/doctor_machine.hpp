// What the checks of `rocflash doctor` read from a machine's file system and environment.
#pragma once

#include <cstdint>
#include <optional>

#include "doctor.hpp"

namespace rocflash::cli {

enum class Vendor { amd, nvidia };

class MachineReader {
 public:
  explicit MachineReader(const Machine& machine) : machine_(machine) {}

  bool exists(const std::string& path) const;
  // Contents without trailing white space; empty if the file is missing.
  std::string text(const std::string& path) const;
  // Names of a directory's entries, sorted; empty if it is missing.
  std::vector<std::string> entries(const std::string& path) const;

  // Unset and empty are different: an empty HIP_VISIBLE_DEVICES hides all devices.
  std::optional<std::string> variable(const std::string& name) const;

  // Whether the process may read and write a file; its owner and mode decide, root always may.
  bool may_use(const std::string& path) const;
  // "group render (gid 110)", for messages.
  std::string group_of(const std::string& path) const;

  // PCI addresses of the vendor's display controllers and processing accelerators.
  std::vector<std::string> cards(Vendor vendor) const;
  // Architectures of the GPUs that the kernel module has initialized.
  std::vector<std::string> initialized_gpus() const;

  // "docker", "podman", "kubernetes" ...; empty outside of containers.
  std::string container() const;
  bool wsl() const;

 private:
  std::filesystem::path at(const std::string& path) const;

  const Machine& machine_;
};

}  // namespace rocflash::cli
