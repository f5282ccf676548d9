// The backend interface: whether a call is supported, how much workspace it needs, and its
// execution.
#pragma once

#include <memory>
#include <string>

#include "core/arguments.hpp"
#include "core/calls.hpp"
#include "core/names.hpp"
#include "core/sizes.hpp"

namespace rocflash::core {

// A call whose kernels are selected and whose launches are filled in except for its arguments.
// Immutable: threads may run it concurrently, with different workspaces.
class PreparedCall {
 public:
  PreparedCall() = default;
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;
  virtual ~PreparedCall() = default;

  virtual void run(const ArgumentValues& values, void* stream) const = 0;
};

class Backend {
 public:
  // Why this call is not supported, naming the argument; empty if it is.
  virtual std::string refusal(const ForwardCall&) const = 0;
  virtual std::string refusal(const DecodeCall&) const = 0;
  virtual std::string refusal(const BackwardCall&) const = 0;
  // Bytes; may exceed the address space.
  virtual Size workspace(const ForwardCall&) const = 0;
  virtual Size workspace(const DecodeCall&) const = 0;
  virtual Size workspace(const BackwardCall&) const = 0;
  // Each rejects a workspace that is too small before it writes anything.
  virtual void run(const ForwardCall&) const = 0;
  virtual void run(const DecodeCall&) const = 0;
  virtual void run(const BackwardCall&) const = 0;
  virtual void run(const CombineCall&) const = 0;
  virtual void run(const RotateCall&) const = 0;
  // Does once what does not depend on the values of the arguments. `like` has the alignment of
  // those of every run, and v's value equals k's exactly if it does in every run. Null: there is
  // nothing to prepare, and the call runs as any other.
  virtual std::unique_ptr<const PreparedCall> prepare(const ForwardCall&,
                                                      const ArgumentValues& like) const;
  virtual std::unique_ptr<const PreparedCall> prepare(const DecodeCall&,
                                                      const ArgumentValues& like) const;
  virtual std::unique_ptr<const PreparedCall> prepare(const BackwardCall&,
                                                      const ArgumentValues& like) const;

 protected:
  // Backends are constant-initialized and have no destructor to run, so fork never observes a
  // partial initialization.
  constexpr Backend() = default;
  ~Backend() = default;
};

inline std::unique_ptr<const PreparedCall> Backend::prepare(const ForwardCall&,
                                                            const ArgumentValues&) const {
  return nullptr;
}
inline std::unique_ptr<const PreparedCall> Backend::prepare(const DecodeCall&,
                                                            const ArgumentValues&) const {
  return nullptr;
}
inline std::unique_ptr<const PreparedCall> Backend::prepare(const BackwardCall&,
                                                            const ArgumentValues&) const {
  return nullptr;
}

}  // namespace rocflash::core
