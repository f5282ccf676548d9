// DPP controls as tables of source lanes.
#include "core/dpp.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace rocflash::sim {
namespace {

std::vector<int> list_of(std::string_view text) {
  std::vector<int> values;
  int current = -1;
  for (const char c : text) {
    if (c >= '0' && c <= '9') {
      current = (current < 0 ? 0 : current * 10) + (c - '0');
    } else if (current >= 0) {
      values.push_back(current);
      current = -1;
    }
  }
  if (current >= 0) values.push_back(current);
  return values;
}

// Source lane of lane i in a row of 16, or -1 beyond the row.
int within_row(int i, int moved) { return moved < 0 || moved > 15 ? -1 : (i & ~15) + moved; }

}  // namespace

DppControl make_dpp(const Instruction& in, int wave_size) {
  DppControl c;
  c.fetch_inactive = in.number("fi", 0) != 0;
  c.zero_invalid = in.number("bound_ctrl", 0) != 0;
  const auto n = [&](std::string_view name) { return static_cast<int>(in.number(name, 0)); };
  const std::vector<int> quad = list_of(in.value("quad_perm"));
  const std::vector<int> eight = list_of(in.value("dpp8"));
  const bool is_eight = eight.size() == 8;
  if (is_eight) c.zero_invalid = true;
  for (int i = 0; i < wave_size; ++i) {
    const int r = i & 15;
    int from = i;
    if (quad.size() == 4) {
      from = (i & ~3) + quad[static_cast<std::size_t>(i & 3)];
    } else if (is_eight) {
      from = (i & ~7) + eight[static_cast<std::size_t>(i & 7)];
    } else if (in.has("row_shl")) {
      from = within_row(i, r + n("row_shl"));
    } else if (in.has("row_shr")) {
      from = within_row(i, r - n("row_shr"));
    } else if (in.has("row_ror")) {
      from = within_row(i, (r + 16 - n("row_ror")) & 15);
    } else if (in.has("row_mirror")) {
      from = within_row(i, 15 - r);
    } else if (in.has("row_half_mirror")) {
      from = (i & ~7) + 7 - (i & 7);
    } else if (in.has("row_share")) {
      from = within_row(i, n("row_share"));
    } else if (in.has("row_newbcast")) {
      from = within_row(i, n("row_newbcast"));
    } else if (in.has("row_xmask")) {
      from = within_row(i, r ^ n("row_xmask"));
    } else if (in.has("row_bcast")) {
      const int length = n("row_bcast") + 1;  // lane 15 to the next row, 31 to the next two
      from = i < length ? -1 : i / length * length - 1;
    } else if (in.has("wave_shl")) {
      from = i + 1 < wave_size ? i + 1 : -1;
    } else if (in.has("wave_shr")) {
      from = i - 1;
    } else if (in.has("wave_rol")) {
      from = (i + 1) % wave_size;
    } else if (in.has("wave_ror")) {
      from = (i + wave_size - 1) % wave_size;
    } else {
      throw std::runtime_error("unknown DPP control: " + in.text);
    }
    c.from[static_cast<std::size_t>(i)] = static_cast<i8>(from);
  }
  if (!is_eight) {
    const i64 rows = in.number("row_mask", 15);
    const i64 banks = in.number("bank_mask", 15);
    c.write_mask = 0;
    for (int i = 0; i < wave_size; ++i) {
      if ((rows >> (i / 16) & 1) != 0 && (banks >> (i / 4 % 4) & 1) != 0) {
        c.write_mask |= 1ull << i;
      }
    }
  }
  return c;
}

}  // namespace rocflash::sim
