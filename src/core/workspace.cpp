#include "core/workspace.hpp"

#include <cstdint>

#include "core/error.hpp"

namespace rocflash::core {

std::size_t workspace_bytes(Size needed, const Problem& p) {
  if (!needed.fits())
    refuse_unsupported("q: ", p.batch(), " sequences in ", p.lengths.rows_q, " rows of ", p.heads,
                       " heads, and ", p.lengths.rows_k,
                       " rows of k; the workspace of this call would exceed 64-bit addresses");
  return needed.bytes();
}

void check_workspace(const Resources& r, Size needed, const Problem& p) {
  const std::size_t bytes = workspace_bytes(needed, p);
  if (bytes == 0) return;
  if (r.workspace_size < bytes)
    refuse("workspace_size: ", r.workspace_size, "; this call needs ", bytes,
           " bytes (the workspace query tells)");
  if (!r.workspace) refuse("workspace: is null, but this call needs ", bytes, " bytes");
  const auto past = reinterpret_cast<std::uintptr_t>(r.workspace) % workspace_alignment;
  if (past != 0)
    refuse("workspace: its address is ", past, " past a multiple of ", workspace_alignment,
           "; it must be a multiple");
}

}  // namespace rocflash::core
