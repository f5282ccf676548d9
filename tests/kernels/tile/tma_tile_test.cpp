// TMA tiles and wgmma descriptors: the swizzle is a permutation, descriptors have the bit fields of
// the PTX manual, and addresses computed from a descriptor are those of the tile's elements.
#include "tile/tma_tile.hpp"

#include <gtest/gtest.h>

#include <set>

namespace rocflash::kernel {
namespace {

template <class Tile>
void expect_swizzle() {
  std::set<int> offsets;
  for (int row = 0; row < Tile::rows; ++row)
    for (int column = 0; column < Tile::columns; ++column) {
      const int offset = Tile::offset(row, column);
      EXPECT_EQ(offset % 2, 0);
      EXPECT_LT(offset, Tile::bytes);
      offsets.insert(offset);
    }
  EXPECT_EQ(offsets.size(), static_cast<std::size_t>(Tile::rows * Tile::columns));
  // Eight rows of a chunk column are in different banks.
  for (int column = 0; column < Tile::columns; column += 8) {
    std::set<int> banks;
    for (int row = 0; row < 8; ++row) banks.insert(Tile::offset(row, column) % 128 / 16);
    EXPECT_EQ(banks.size(), 8u);
  }
}

TEST(TmaTile, SwizzleIsAPermutationWithoutBankConflicts) {
  expect_swizzle<TmaTile<64, 64>>();
  expect_swizzle<TmaTile<176, 128>>();
  expect_swizzle<TmaTile<64, 96>>();
  expect_swizzle<TmaTile<80, 256>>();
}

TEST(TmaTile, WidthsAndSwizzles) {
  EXPECT_EQ((TmaTile<64, 128>::count), 2);
  EXPECT_EQ((TmaTile<64, 128>::swizzle), Swizzle::bytes128);
  EXPECT_EQ((TmaTile<64, 96>::count), 3);
  EXPECT_EQ((TmaTile<64, 96>::swizzle), Swizzle::bytes64);
  EXPECT_EQ((TmaTile<176, 128>::bytes), 176 * 128 * 2);
  // By hand: row 3, column 8 is chunk 1 of a row of 128 bytes, and 1 XOR 3 is 2.
  EXPECT_EQ((TmaTile<64, 64>::offset(3, 9)), 3 * 128 + 2 * 16 + 2);
  // Rows of 64 bytes: row 6 swizzles with 6 / 2 % 4 = 3; column 40 is chunk 1 of column block 1.
  EXPECT_EQ((TmaTile<64, 96>::offset(6, 40)), 64 * 64 + 6 * 64 + (1 ^ 3) * 16);
}

TEST(TmaTile, DescriptorFields) {
  const std::uint64_t d = make_descriptor(0x1a400, 16, 1024, Swizzle::bytes128);
  EXPECT_EQ(d & 0x3fff, 0x1a40u);    // 0-13: address / 16
  EXPECT_EQ(d >> 14 & 0x3, 0u);      // not used
  EXPECT_EQ(d >> 16 & 0x3fff, 1u);   // 16-29: leading offset / 16
  EXPECT_EQ(d >> 32 & 0x3fff, 64u);  // 32-45: stride offset / 16
  EXPECT_EQ(d >> 46 & 0xffff, 0u);   // 49-51: base offset
  EXPECT_EQ(d >> 62, 1u);            // 62-63: swizzle
  EXPECT_EQ(make_descriptor(0, 0, 512, Swizzle::bytes64) >> 62, 2u);
  EXPECT_EQ(make_descriptor(0x40010, 0, 0, Swizzle::none), 1u);  // addresses have 18 bits
}

// The PTX manual's canonical layouts: the address without a swizzle, of which some bits are then
// XORed with others.
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
  // K-major: rows in memory are along k, and eight rows of the operand are contiguous.
  int k_major(int mn, int k) const {
    return swizzled(start + mn / 8 * stride + mn % 8 * row_bytes() + 2 * k, swizzle);
  }
  // MN-major: rows in memory are along M or N. `leading` is the offset of the next swizzle-wide
  // block of M or N, `stride` that of the next eight k.
  int mn_major(int mn, int k) const {
    const int width = row_bytes() / 2;
    return swizzled(
        start + mn / width * leading + k / 8 * stride + k % 8 * row_bytes() + 2 * (mn % width),
        swizzle);
  }
};

template <class Tile>
void expect_k_major(int first_row, int count) {
  constexpr SharedAddress at = 4 * 1024;
  const KMajorOperand<Tile> operand(at, first_row);
  for (int step = 0; step < Tile::columns / wgmma_k; ++step) {
    const Fields fields(operand.step(step));
    for (int mn = 0; mn < count; ++mn)
      for (int k = 0; k < wgmma_k; ++k)
        ASSERT_EQ(fields.k_major(mn, k),
                  static_cast<int>(at) + Tile::offset(first_row + mn, step * wgmma_k + k))
            << step << " " << mn << " " << k;
  }
}

template <class Tile>
void expect_mn_major(int first_column, int count, int first_row) {
  constexpr SharedAddress at = 4 * 1024;
  const MnMajorOperand<Tile> operand(at, first_column, first_row);
  for (int step = 0; step < (Tile::rows - first_row) / wgmma_k; ++step) {
    const Fields fields(operand.step(step));
    for (int mn = 0; mn < count; ++mn)
      for (int k = 0; k < wgmma_k; ++k)
        ASSERT_EQ(
            fields.mn_major(mn, k),
            static_cast<int>(at) + Tile::offset(first_row + step * wgmma_k + k, first_column + mn))
            << step << " " << mn << " " << k;
  }
}

TEST(TmaTile, KMajorOperands) {
  expect_k_major<TmaTile<128, 64>>(64, 64);
  expect_k_major<TmaTile<176, 128>>(0, 176);
  expect_k_major<TmaTile<80, 256>>(0, 80);
  expect_k_major<TmaTile<128, 96>>(64, 64);
}

TEST(TmaTile, MnMajorOperands) {
  expect_mn_major<TmaTile<128, 64>>(0, 64, 0);
  expect_mn_major<TmaTile<176, 128>>(0, 128, 0);
  expect_mn_major<TmaTile<80, 256>>(128, 128, 0);
  expect_mn_major<TmaTile<64, 96>>(0, 96, 0);
  expect_mn_major<TmaTile<128, 128>>(64, 64, 64);
}

// The producer waits for the phase before the first to be over, which it is on a fresh barrier.
TEST(PipelineState, StagesAndParities) {
  ProducerState<2> producer;
  ConsumerState<2> consumer;
  for (int n = 0; n < 10; ++n, producer.advance(), consumer.advance()) {
    EXPECT_EQ(producer.stage(), n % 2);
    EXPECT_EQ(consumer.stage(), n % 2);
    EXPECT_EQ(producer.parity(), static_cast<std::uint32_t>(n / 2 % 2 ^ 1));
    EXPECT_EQ(consumer.parity(), static_cast<std::uint32_t>(n / 2 % 2));
    EXPECT_EQ(consumer.before().stage(), (n + 1) % 2);
  }
}

}  // namespace
}  // namespace rocflash::kernel
