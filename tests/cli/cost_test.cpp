// Costs compared with sums computed by hand.
#include "cli/cost.hpp"

#include <gtest/gtest.h>

namespace rocflash::cli {
namespace {

TEST(Cost, FlopsOfTheTwoProducts) {
  const CostShape s{2, 3, 1, 10, 20, 8};
  EXPECT_EQ(forward_flops(s), 4.0 * 2 * 3 * 10 * 20 * 8);
  CostShape causal = s;
  causal.causal = true;
  EXPECT_EQ(forward_flops(causal), forward_flops(s) / 2);
  // A window of two keys: the query position, which is 10 + i, and the one before.
  CostShape window = s;
  window.left = 1;
  window.right = 0;
  EXPECT_EQ(forward_flops(window), 4.0 * 2 * 3 * 10 * 2 * 8);
}

TEST(Cost, LeastTrafficAccessesEachTensorOnce) {
  const CostShape s{2, 4, 2, 100, 50, 64};
  const double q = 2.0 * 4 * 100 * 64 * 2, k = 2.0 * 2 * 50 * 64 * 2, lse = 2.0 * 4 * 100 * 4;
  EXPECT_EQ(forward_traffic(s, "cdna3").least, 2 * q + 2 * k + lse);
}

TEST(Cost, EveryQueryBlockRequestsItsVisibleKeys) {
  // Two blocks of 256 queries on cdna3; key tiles of 64.
  CostShape s{1, 1, 1, 512, 512, 64};
  const double queries = 512.0 * 64 * 2 * 2 + 512 * 4, row = 64.0 * 2 * 2;
  EXPECT_EQ(forward_traffic(s, "cdna3").requested, queries + 2 * 512 * row);
  s.causal = true;  // the first block attends to half of them
  EXPECT_EQ(forward_traffic(s, "cdna3").requested, queries + (256 + 512) * row);
  EXPECT_EQ(forward_traffic(s, "no such family").requested, 0);
}

TEST(Cost, BackwardReadsWhatItsKernelsStream) {
  // Two blocks of 128 queries and two of 128 keys on cdna1, with separate kernels above 128
  // columns.
  CostShape s{1, 1, 1, 256, 256, 256};
  const double rows = 256.0 * 256 * 2, lse = 256 * 4;
  EXPECT_EQ(backward_traffic(s, "cdna1").least, 8 * rows + lse);
  const double owned = 2 * rows + lse + 3 * rows + 2 * lse + 5 * rows, streamed = 2 * rows;
  EXPECT_EQ(backward_traffic(s, "cdna1").requested,
            owned + 2 * streamed + 2 * (streamed + 2 * lse) + 2 * (streamed + lse));
  s.causal = true;  // the first query block and the last key block need half
  EXPECT_EQ(backward_traffic(s, "cdna1").requested,
            owned + 1.5 * streamed + 1.5 * (streamed + 2 * lse) + 1.5 * (streamed + lse));
}

TEST(Cost, FusedBackwardAccumulatesDq) {
  CostShape s{1, 1, 1, 256, 256, 64};  // two blocks of 128 keys
  const double rows = 256.0 * 64 * 2, lse = 256 * 4, sums = 2 * rows;
  const double owned = 2 * rows + lse + sums + 5 * rows + sums + rows,
               streamed = 2 * rows + 2 * lse + sums;
  EXPECT_EQ(backward_traffic(s, "cdna3").requested, owned + 2 * streamed);
  s.causal = true;  // half of the queries attend to the last key block
  EXPECT_EQ(backward_traffic(s, "cdna3").requested, owned + 1.5 * streamed);
}

TEST(Cost, ASeparateDvKernelReadsAgain) {
  const CostShape s{1, 1, 1, 256, 256, 256};  // two blocks of 128 keys
  const double rows = 256.0 * 256 * 2, lse = 256 * 4, sums = 2 * rows;
  const double owned = 2 * rows + lse + sums + 6 * rows + sums + rows,
               streamed = 2 * rows + 2 * lse + sums, for_dv = 2 * rows + lse;
  EXPECT_EQ(backward_traffic(s, "cdna3").requested, owned + 2 * streamed + 2 * for_dv);
}

TEST(Cost, PeaksOfKnownProducts) {
  EXPECT_NEAR(*peak_tflops("gfx942", 304), 1307.4, 0.5);  // MI300X
  EXPECT_NEAR(*peak_tflops("gfx950", 256), 2516.6, 0.5);  // MI355X
  EXPECT_NEAR(*peak_tflops("gfx90a", 104), 181.0, 0.5);   // MI210
  EXPECT_NEAR(*peak_tflops("gfx908", 120), 184.6, 0.1);   // MI100
  EXPECT_NEAR(*peak_tflops("gfx906", 60), 26.5, 0.1);     // MI50
  EXPECT_NEAR(*peak_tflops("gfx1030", 40), 46.1, 0.1);    // RX 6900 XT
  EXPECT_NEAR(*peak_tflops("gfx1100", 48), 122.9, 0.1);   // RX 7900 XTX
  EXPECT_NEAR(*peak_tflops("gfx1201", 32), 194.6, 0.1);   // RX 9070 XT
  EXPECT_NEAR(*peak_tflops("sm_90", 132), 989.4, 1);      // H100, H200
  EXPECT_NEAR(*peak_tflops("sm_80", 108), 312, 1);        // A100
  EXPECT_FALSE(peak_tflops("gfx1036", 1));
}

}  // namespace
}  // namespace rocflash::cli
