// Runs cases: the device under test, the reference implementation and naive attention get the same
// inputs, forward and backward. The error of naive attention bounds the error of the device.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "verify/case.hpp"
#include "verify/compare.hpp"
#include "verify/gpu.hpp"

namespace rocflash::verify {

struct Result {
  Case what;
  std::vector<Comparison> comparisons;  // one per output
  // A failure other than a numerical one, such as an error or an out-of-bounds write; empty: none.
  std::string failure;
  std::string refused;  // the device's message, where it is documented to refuse the case

  bool good() const;
  double worst_ratio(bool gradient) const;
};

// The device under test.
struct Device {
  Device(Backend host_backend = Backend::cpu) : backend(host_backend) {}

  Device(std::shared_ptr<Gpu> device) : gpu(std::move(device)) {}

  Backend backend = Backend::automatic;
  std::shared_ptr<Gpu> gpu;  // null: `backend` on the host
  // Changes the problem that only the device gets. Tests inject faults with it and check that they
  // are detected.
  std::function<void(Problem&)> fault;
  std::function<void(Append&)> append_fault;
};

// Why a GPU refuses a case, as documented in docs/guides/gpu.md; empty if it must run.
std::string documented_refusal(const Case& what);

Result run(const Case& what, const Device& device = {});

// Runs all on `workers` threads and calls `done` after each, one at a time, in any order. Results
// are in the order of the cases.
std::vector<Result> run_all(const std::vector<Case>& cases, const Device& device, int workers,
                            const std::function<void(const Result&)>& done = {});

}  // namespace rocflash::verify
