// The one face that backends show the door: can you run this, how much scratch memory, run it.
#pragma once

#include <cstddef>
#include <string>

#include "core/append.hpp"
#include "core/problem.hpp"

namespace rocflash {

class Backend {
 public:
  virtual ~Backend() = default;
  // Empty, or why this problem cannot be run, naming the argument. `gradients` tells backward from
  // forward.
  virtual std::string refusal(const Problem& problem, bool gradients) const = 0;
  virtual std::size_t workspace(const Problem&, const ForwardOutputs&, const Execution&) const = 0;
  virtual std::size_t workspace(const Problem&, const BackwardTensors&, const Execution&) const = 0;
  // Writes the new keys into the cache and the rotated queries where `after` has them.
  virtual void append(const Problem&, const Append&, const AppendedProblem& after) const = 0;
  virtual void run(const Problem&, const ForwardOutputs&, const Execution&) const = 0;
  virtual void run(const Problem&, const BackwardTensors&, const Execution&) const = 0;
};

}  // namespace rocflash
