// The one face that backends show the door: can you run this, how much scratch memory, run it.
#pragma once

#include <string>

#include "core/append.hpp"
#include "core/problem.hpp"
#include "core/sizes.hpp"

namespace rocflash {

class Backend {
 public:
  // Empty, or why this problem cannot be run, naming the argument. `gradients` tells backward from
  // forward.
  virtual std::string refusal(const Problem& problem, bool gradients) const = 0;
  // In bytes; may be too large.
  virtual Size workspace(const Problem&, const ForwardOutputs&, const Execution&) const = 0;
  virtual Size workspace(const Problem&, const BackwardTensors&, const Execution&) const = 0;
  // Writes the new keys into the cache and the rotated queries where `after` has them.
  virtual void append(const Problem&, const Append&, const AppendedProblem& after) const = 0;
  virtual void run(const Problem&, const ForwardOutputs&, const Execution&) const = 0;
  virtual void run(const Problem&, const BackwardTensors&, const Execution&) const = 0;

 protected:
  // Backends are constants of the process. Without a destructor to run they are made when it is
  // linked, not on first use, and so no fork can come in between.
  constexpr Backend() = default;
  ~Backend() = default;
};

}  // namespace rocflash
