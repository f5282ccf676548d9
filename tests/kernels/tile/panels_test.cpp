// Tiles as Hopper's matrix unit reads them: numbers have places of their own, descriptors have the
// bits of the PTX manual, and reading by a descriptor's rules finds the numbers where tiles have
// them.
#include "tile/panels.hpp"

#include <gtest/gtest.h>

#include <set>

namespace rocflash::kernel {
namespace {

template <class Tile>
void expect_places() {
  std::set<int> places;
  for (int row = 0; row < Tile::rows; ++row)
    for (int column = 0; column < Tile::columns; ++column) {
      const int offset = Tile::offset(row, column);
      EXPECT_EQ(offset % 2, 0);
      EXPECT_LT(offset, Tile::bytes);
      places.insert(offset);
    }
  EXPECT_EQ(places.size(), static_cast<std::size_t>(Tile::rows * Tile::columns));
  // Eight rows of one chunk lie in different banks.
  for (int column = 0; column < Tile::columns; column += 8) {
    std::set<int> banks;
    for (int row = 0; row < 8; ++row) banks.insert(Tile::offset(row, column) % 128 / 16);
    EXPECT_EQ(banks.size(), 8u);
  }
}

TEST(Panels, EveryNumberHasAPlace) {
  expect_places<Panels<64, 64>>();
  expect_places<Panels<176, 128>>();
  expect_places<Panels<64, 96>>();
  expect_places<Panels<80, 256>>();
}

TEST(Panels, WidthsAndSwizzles) {
  EXPECT_EQ((Panels<64, 128>::count), 2);
  EXPECT_EQ((Panels<64, 128>::swizzle), Swizzle::bytes128);
  EXPECT_EQ((Panels<64, 96>::count), 3);
  EXPECT_EQ((Panels<64, 96>::swizzle), Swizzle::bytes64);
  EXPECT_EQ((Panels<176, 128>::bytes), 176 * 128 * 2);
  // By hand: row 3, column 8 is chunk 1 of a row of 128 bytes, and 1 XOR 3 is 2.
  EXPECT_EQ((Panels<64, 64>::offset(3, 9)), 3 * 128 + 2 * 16 + 2);
  // Rows of 64 bytes: row 6 exchanges by 6 / 2 % 4 = 3; column 40 is chunk 1 of panel 1.
  EXPECT_EQ((Panels<64, 96>::offset(6, 40)), 64 * 64 + 6 * 64 + (1 ^ 3) * 16);
}

TEST(Panels, BitsOfADescriptor) {
  const std::uint64_t d = describe(0x1a400, 16, 1024, Swizzle::bytes128);
  EXPECT_EQ(d & 0x3fff, 0x1a40u);    // 0-13: address / 16
  EXPECT_EQ(d >> 14 & 0x3, 0u);      // not used
  EXPECT_EQ(d >> 16 & 0x3fff, 1u);   // 16-29: leading offset / 16
  EXPECT_EQ(d >> 32 & 0x3fff, 64u);  // 32-45: stride offset / 16
  EXPECT_EQ(d >> 46 & 0xffff, 0u);   // 49-51: offset of the pattern
  EXPECT_EQ(d >> 62, 1u);            // 62-63: swizzle
  EXPECT_EQ(describe(0, 0, 512, Swizzle::bytes64) >> 62, 2u);
  EXPECT_EQ(describe(0x40010, 0, 0, Swizzle::none), 1u);  // addresses have 18 bits
}

// Where the matrix unit looks for a number, by the manual: an address is computed as if there were
// no swizzle, and then bits of it change by XOR with others.
int swizzled(int address, Swizzle swizzle) {
  return swizzle == Swizzle::bytes128 ? address ^ (address >> 3 & 0x70)
                                      : address ^ (address >> 3 & 0x30);
}
struct Fields {
  int start, leading, stride;
  Swizzle swizzle;
  explicit Fields(std::uint64_t d)
      : start(static_cast<int>(d & 0x3fff) * 16),
        leading(static_cast<int>(d >> 16 & 0x3fff) * 16),
        stride(static_cast<int>(d >> 32 & 0x3fff) * 16),
        swizzle(static_cast<Swizzle>(d >> 62)) {}
  int row_bytes() const { return swizzle == Swizzle::bytes128 ? 128 : 64; }
  // The depth lies along rows in memory: eight lines are one behind the other.
  int along_depth(int line, int depth) const {
    return swizzled(start + line / 8 * stride + line % 8 * row_bytes() + 2 * depth, swizzle);
  }
  // Lines lie along rows: a row of the pattern has as many lines as fit, `leading` leads to the
  // next lines, `stride` to the next eight of the depth.
  int along_lines(int line, int depth) const {
    const int across = row_bytes() / 2;
    return swizzled(start + line / across * leading + depth / 8 * stride + depth % 8 * row_bytes() +
                        2 * (line % across),
                    swizzle);
  }
};

template <class Tile>
void expect_row_lines(int first_row, int lines) {
  constexpr SharedAddress at = 4 * 1024;
  const RowLines<Tile> operand(at, first_row);
  for (int step = 0; step < Tile::columns / product_depth; ++step) {
    const Fields fields(operand.step(step));
    for (int line = 0; line < lines; ++line)
      for (int depth = 0; depth < product_depth; ++depth)
        ASSERT_EQ(
            fields.along_depth(line, depth),
            static_cast<int>(at) + Tile::offset(first_row + line, step * product_depth + depth))
            << step << " " << line << " " << depth;
  }
}

template <class Tile>
void expect_column_lines(int first_column, int lines, int first_row) {
  constexpr SharedAddress at = 4 * 1024;
  const ColumnLines<Tile> operand(at, first_column, first_row);
  for (int step = 0; step < (Tile::rows - first_row) / product_depth; ++step) {
    const Fields fields(operand.step(step));
    for (int line = 0; line < lines; ++line)
      for (int depth = 0; depth < product_depth; ++depth)
        ASSERT_EQ(fields.along_lines(line, depth),
                  static_cast<int>(at) +
                      Tile::offset(first_row + step * product_depth + depth, first_column + line))
            << step << " " << line << " " << depth;
  }
}

TEST(Panels, OperandsWhoseLinesAreRows) {
  expect_row_lines<Panels<128, 64>>(64, 64);
  expect_row_lines<Panels<176, 128>>(0, 176);
  expect_row_lines<Panels<80, 256>>(0, 80);
  expect_row_lines<Panels<128, 96>>(64, 64);
}

TEST(Panels, OperandsWhoseLinesAreColumns) {
  expect_column_lines<Panels<128, 64>>(0, 64, 0);
  expect_column_lines<Panels<176, 128>>(0, 128, 0);
  expect_column_lines<Panels<80, 256>>(128, 128, 0);
  expect_column_lines<Panels<64, 96>>(0, 96, 0);
  expect_column_lines<Panels<128, 128>>(64, 64, 64);
}

// Who fills waits for the phase before the first to be over, which it is on a fresh barrier.
TEST(Panels, PlacesOfARing) {
  FillPlace<2> fill;
  DrainPlace<2> drain;
  for (int n = 0; n < 10; ++n, fill.advance(), drain.advance()) {
    EXPECT_EQ(fill.stage(), n % 2);
    EXPECT_EQ(drain.stage(), n % 2);
    EXPECT_EQ(fill.parity(), static_cast<std::uint32_t>(n / 2 % 2 ^ 1));
    EXPECT_EQ(drain.parity(), static_cast<std::uint32_t>(n / 2 % 2));
    EXPECT_EQ(drain.before().stage(), (n + 1) % 2);
  }
}

}  // namespace
}  // namespace rocflash::kernel
