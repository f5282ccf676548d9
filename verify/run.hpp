// Runs cases: device, reference and plain attention on the same inputs, forward and backward, and
// judges the first by the other two.
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
  std::vector<Finding> findings;  // one for each output
  std::string
      failure;  // what went wrong apart from numbers: a refusal, a stray write; empty: nothing
  std::string refused;  // the device's message, where it is documented to refuse the case

  bool good() const;
  double worst_ratio(bool gradient) const;
};

// The device under test. It is always compared with the reference and the plain backend.
struct Device {
  Device(Backend who = Backend::cpu) : backend(who) {}

  Device(std::shared_ptr<Gpu> who) : gpu(std::move(who)) {}

  Backend backend = Backend::automatic;
  std::shared_ptr<Gpu> gpu;  // null: the host, by `backend`
  // Changes the problem that the device gets to see: tests make it err and look whether that is
  // noticed.
  std::function<void(Problem&)> fault;
  std::function<void(Append&)> append_fault;
};

// Why a GPU refuses a case, as docs/gpu.md has it; empty when it ought to run.
std::string documented_refusal(const Case& what);

Result run(const Case& what, const Device& device = {});

// Runs all on `workers` threads and calls `done` after each, one at a time, in any order. Results
// are in the order of the cases.
std::vector<Result> run_all(const std::vector<Case>& cases, const Device& device, int workers,
                            const std::function<void(const Result&)>& done = {});

}  // namespace rocflash::verify
