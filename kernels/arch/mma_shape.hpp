// Shape of an MMA: dimensions from its register layout, register types from the architecture.
#pragma once

namespace rocflash::kernel::arch {

template <class Layout_, class Result_, class Operand_>
struct MmaShape {
  using Layout = Layout_;
  static constexpr int rows = Layout::rows, columns = Layout::columns, depth = Layout::depth;
  static constexpr int results = Layout::results;  // accumulator registers per lane
  using Result = Result_;
  using Operand = Operand_;
};

}  // namespace rocflash::kernel::arch
