// Register layouts of matrix instructions: AMD's equal the tables of AMD's matrix instruction
// calculator, and every layout covers each element of each matrix.
#include "arch/layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>

namespace rocflash::kernel::layout {
namespace {

// (lane, element of the lane) -> (row, column) of one matrix.
using ElementMap = std::map<std::pair<int, int>, std::pair<int, int>>;

template <class Layout>
ElementMap elements_of(char matrix) {
  ElementMap all;
  for (int lane = 0; lane < Layout::lanes; ++lane) {
    if (matrix == 'A') {
      for (int e = 0; e < Layout::a_elements; ++e)
        all[{lane, e}] = {Layout::a_row(lane, e), Layout::a_depth(lane, e)};
    } else if (matrix == 'B') {
      for (int e = 0; e < Layout::b_elements; ++e)
        all[{lane, e}] = {Layout::b_depth(lane, e), Layout::b_column(lane, e)};
    } else {
      for (int r = 0; r < Layout::results; ++r)
        all[{lane, r}] = {result_row<Layout>(lane, r), result_column<Layout>(lane, r)};
    }
  }
  return all;
}

// Table columns: matrix,row,col,lane,vgpr,bit_lo,bit_hi.
ElementMap table(const std::string& file, char matrix) {
  ElementMap all;
  std::ifstream in(std::string(ROCFLASH_MATRIX_LAYOUTS) + "/" + file + ".csv");
  std::string line;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] != matrix || line[1] != ',') continue;
    std::ranges::replace(line, ',', ' ');
    std::istringstream fields(line.substr(1));
    int row = 0, column = 0, lane = 0, vgpr = 0, low = 0, high = 0;
    fields >> row >> column >> lane >> vgpr >> low >> high;
    const int bits = high - low + 1;
    all[{lane, vgpr * (32 / bits) + low / bits}] = {row, column};
  }
  return all;
}

template <class Layout>
void expect_table(const std::string& file) {
  for (const char matrix : {'A', 'B', 'D'}) {
    const ElementMap expected = table(file, matrix);
    ASSERT_FALSE(expected.empty()) << file << " " << matrix;
    EXPECT_EQ(elements_of<Layout>(matrix), expected) << file << " " << matrix;
  }
}

TEST(Layout, MatchesAmdsMatrixInstructionCalculator) {
  for (const char* file :
       {"gfx90a.w64.v_mfma_f32_32x32x8f16", "gfx90a.w64.v_mfma_f32_32x32x8bf16_1k",
        "gfx942.w64.v_mfma_f32_32x32x8_f16", "gfx942.w64.v_mfma_f32_32x32x8_bf16"})
    expect_table<Mfma32x32<8>>(file);
  // gfx908's instructions, which gfx90a has too.
  expect_table<Mfma32x32<4>>("gfx90a.w64.v_mfma_f32_32x32x4bf16");
  expect_table<Mfma16x16x4>("gfx90a.w64.v_mfma_f32_16x16x4f32");
  for (const char* file :
       {"gfx950.w64.v_mfma_f32_32x32x16_f16", "gfx950.w64.v_mfma_f32_32x32x16_bf16"})
    expect_table<Mfma32x32<16>>(file);
  for (const char* file :
       {"gfx1100.w32.v_wmma_f32_16x16x16_f16", "gfx1100.w32.v_wmma_f32_16x16x16_bf16"})
    expect_table<WmmaGfx11>(file);
  for (const char* file :
       {"gfx1201.w32.v_wmma_f32_16x16x16_f16", "gfx1201.w32.v_wmma_f32_16x16x16_bf16"})
    expect_table<WmmaGfx12>(file);
}

template <class Layout>
void expect_complete() {
  const auto count = [](char matrix) {
    std::set<std::pair<int, int>> covered;
    for (const auto& [register_element, element] : elements_of<Layout>(matrix))
      covered.insert(element);
    return static_cast<int>(covered.size());
  };
  EXPECT_EQ(count('A'), Layout::rows * Layout::depth);
  EXPECT_EQ(count('B'), Layout::depth * Layout::columns);
  EXPECT_EQ(count('D'), Layout::rows * Layout::columns);
  EXPECT_EQ(Layout::results * Layout::lanes, Layout::rows * Layout::columns);
}

TEST(Layout, CoversEveryElement) {
  expect_complete<Mfma32x32<4>>();
  expect_complete<Mfma32x32<8>>();
  expect_complete<Mfma32x32<16>>();
  expect_complete<Mfma16x16x4>();
  expect_complete<WmmaGfx11>();
  expect_complete<WmmaGfx12>();
  expect_complete<DotGfx9>();
  expect_complete<DotGfx10>();
  expect_complete<MmaM16n8k16>();
  expect_complete<MmaM16n8k8>();
}

TEST(Layout, ContiguousRowsThatTilesRelyOn) {
  EXPECT_EQ(contiguous_rows<Mfma32x32<16>>(), 4);
  EXPECT_EQ(contiguous_rows<WmmaGfx12>(), 8);
  EXPECT_EQ(contiguous_rows<DotGfx9>(), 8);
  EXPECT_EQ(contiguous_rows<DotGfx10>(), 8);
  EXPECT_EQ(contiguous_rows<WmmaGfx11>(), 1);
  EXPECT_EQ(contiguous_rows<MmaM16n8k16>(), 1);
  EXPECT_EQ(results_within<Mfma32x32<16>>(8), 4);
  EXPECT_EQ(results_within<WmmaGfx12>(8), 8);
  EXPECT_EQ(results_within<DotGfx9>(8), 8);
  EXPECT_EQ(results_within<DotGfx10>(8), 8);
  EXPECT_EQ(results_within<WmmaGfx11>(8), 4);
}

// ds_read_b64_tr_b16 as in arch/amd.hpp: lane n of sixteen gets column n of four rows of 16
// elements, of which lane n addresses elements 4 (n % 4) to 4 (n % 4) + 3 of row n / 4.
TEST(Layout, TransposingReadsMatchTheTable) {
  std::ifstream in(std::string(ROCFLASH_MATRIX_LAYOUTS) + "/gfx950.ds_read_b64_tr_b16.csv");
  std::string line;
  std::getline(in, line);
  int count = 0;
  while (std::getline(in, line)) {
    std::ranges::replace(line, ',', ' ');
    std::istringstream fields(line);
    int lane = 0, element = 0, source_lane = 0, source_element = 0;
    fields >> lane >> element >> source_lane >> source_element;
    EXPECT_EQ(source_lane / 16, lane / 16);
    EXPECT_EQ(source_lane % 16 / 4, element);                      // the row
    EXPECT_EQ(4 * (source_lane % 4) + source_element, lane % 16);  // the column
    ++count;
  }
  EXPECT_EQ(count, 64 * 4);
}

}  // namespace
}  // namespace rocflash::kernel::layout
