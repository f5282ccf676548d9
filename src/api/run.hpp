// A checked call on its way to its backend: how much scratch memory it wants, and running it.
#pragma once

#include "api/check.hpp"

namespace rocflash {

// What a backend asks for.
inline Size workspace_of(const ForwardCall& call) {
  return call.backend->workspace(call.problem, call.outputs, call.execution);
}
inline Size workspace_of(const DecodeCall& call) {
  return AppendedProblem::bytes(call.problem, call.append) +
         workspace_of(static_cast<const ForwardCall&>(call));
}
inline Size workspace_of(const BackwardCall& call) {
  return call.backend->workspace(call.problem, call.tensors, call.execution);
}

// In bytes; refuses what cannot be.
template <class Call>
std::size_t workspace_bytes(const Call& call) {
  return check_workspace_size(workspace_of(call), call.problem);
}

// Each with its workspace in place.
inline void run(const ForwardCall& call) {
  call.backend->run(call.problem, call.outputs, call.execution);
}
inline void run(const DecodeCall& call) {
  const AppendedProblem after(call.problem, call.append, call.execution);
  call.backend->append(call.problem, call.append, after);
  call.backend->run(after.problem, call.outputs, after.execution);
}
inline void run(const BackwardCall& call) {
  call.backend->run(call.problem, call.tensors, call.execution);
}

}  // namespace rocflash
