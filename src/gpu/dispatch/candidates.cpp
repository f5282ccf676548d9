#include "gpu/dispatch/candidates.hpp"

namespace rocflash::gpu {

std::string text_of(Reason reason, Features features) {
  switch (reason) {
    case Reason::features: {
      std::string names;
      for (int n = 0; n < kernel::feature_count; ++n) {
        const auto feature = static_cast<Feature>(n);
        if (!features.has(feature)) continue;
        if (!names.empty()) names += ", ";
        names += name_of(feature);
      }
      return "does not support " + names;
    }
    case Reason::no_kernel:
      return "does not exist on this family for the dtype and head dimension";
    case Reason::no_sm90:
      return "needs an sm_90 device";
    case Reason::tensor_map:
      return "TMA does not support the strides of a tensor";
    case Reason::small_pages:
      return "TMA boxes that divide the pages would have fewer than eight rows";
    case Reason::workgroup_shared:
      return "the tile does not fit in the shared memory of a workgroup";
    case Reason::grid:
      return "a launch cannot have as many workgroups";
    case Reason::f32_precision:
      return "matrix cores would lose the last bit of these f32 products";
    case Reason::no_queries:
      return "there are no queries";
    case Reason::many_queries:
      return "more than 64 queries: forward reads K and V less often";
    case Reason::few_keys:
      return "too few keys to split";
    case Reason::many_row_blocks:
      return "many row blocks: the larger query tiles of forward read K and V less often";
    case Reason::long_kv:
      return "more keys per workgroup than a cluster reads fast: split-KV has more bandwidth";
    case Reason::num_splits:
      return "num_splits is not 1, 2, 4 or 8";
    case Reason::full_last_wave:
      return "the last wave of workgroups is too full, or has too few keys, to gain";
    case Reason::gradients:
      return "saves nothing for the requested gradients";
    case Reason::deterministic:
      return "accumulates dq with atomics, which is not deterministic";
    case Reason::separate_keys:
      return "needs values that are the first columns of the keys";
    case Reason::preferred:
      return "another candidate is faster";
  }
  return {};
}

}  // namespace rocflash::gpu
