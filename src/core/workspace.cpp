#include "core/workspace.hpp"

#include <cstdint>

#include "core/error.hpp"

namespace rocflash::core {

std::size_t workspace_bytes(Size needed, const Problem& p) {
  if (!needed.fits())
    refuse_unsupported("q has ", p.batch(), " sequences in ", p.lengths.rows_q, " rows of ",
                       p.heads, " heads, and k has ", p.lengths.rows_k,
                       " rows; the workspace of this call must fit in 64-bit addresses");
  return needed.bytes();
}

void check_workspace(const Resources& r, Size needed, const Problem& p) {
  const std::size_t bytes = workspace_bytes(needed, p);
  if (bytes == 0) return;
  if (r.workspace_size < bytes)
    refuse("workspace_size is ", r.workspace_size, "; it must be at least ", bytes,
           " for this call, the size that the workspace query returns");
  if (!r.workspace) refuse("workspace is null; this call requires ", bytes, " bytes");
  const auto past = reinterpret_cast<std::uintptr_t>(r.workspace) % workspace_alignment;
  if (past != 0)
    refuse("workspace is ", past, " bytes past a multiple of ", workspace_alignment,
           "; it must be aligned to ", workspace_alignment, " bytes");
}

}  // namespace rocflash::core
