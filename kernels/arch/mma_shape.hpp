// What the class of a matrix instruction says of itself: the numbers are its layout's, the registers the architecture's.
#pragma once

namespace rocflash::kernel::arch {

template <class Layout_, class Result_, class Operand_>
struct MmaShape {
  using Layout = Layout_;
  static constexpr int rows = Layout::rows, columns = Layout::columns, depth = Layout::depth;
  static constexpr int results = Layout::results;  // registers of a result per lane
  using Result = Result_;
  using Operand = Operand_;
};

}  // namespace rocflash::kernel::arch
