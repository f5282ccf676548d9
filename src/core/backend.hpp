// The one face that backends show the door: can you run this call, how much scratch memory does it
// need, run it.
#pragma once

#include <string>

#include "core/calls.hpp"
#include "core/names.hpp"
#include "core/sizes.hpp"

namespace rocflash::core {

class Backend {
 public:
  // Why this call cannot be run, naming the argument; empty: it can.
  virtual std::string refusal(const ForwardCall&) const = 0;
  virtual std::string refusal(const DecodeCall&) const = 0;
  virtual std::string refusal(const BackwardCall&) const = 0;
  // Bytes; may be too large.
  virtual Size workspace(const ForwardCall&) const = 0;
  virtual Size workspace(const DecodeCall&) const = 0;
  virtual Size workspace(const BackwardCall&) const = 0;
  // Each refuses, before it writes anything, a workspace that is too small.
  virtual void run(const ForwardCall&) const = 0;
  virtual void run(const DecodeCall&) const = 0;
  virtual void run(const BackwardCall&) const = 0;
  virtual void run(const CombineCall&) const = 0;
  virtual void run(const RotateCall&) const = 0;

 protected:
  // Backends are constants of the process. Without a destructor to run they are made when it is
  // linked, not on first use, and so no fork can come in between.
  constexpr Backend() = default;
  ~Backend() = default;
};

}  // namespace rocflash::core
