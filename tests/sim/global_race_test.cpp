// Happens-before races on device memory.
#include "core/global_race_detector.h"

#include <gtest/gtest.h>

namespace rocflash::sim {
namespace {

constexpr u64 data = 0x1000, word = 0x2000, other_word = 0x3000;

TEST(GlobalRace, TwoWritersOfTheSameBytes) {
  GlobalRaceDetector w;
  EXPECT_FALSE(w.write(0, data, 8));
  EXPECT_FALSE(w.write(0, data, 8));
  EXPECT_FALSE(w.write(1, data + 8, 4));
  EXPECT_EQ(w.write(1, data + 4, 4), 0u);
}

TEST(GlobalRace, AdjacentBytesDoNotRace) {
  GlobalRaceDetector w;
  EXPECT_FALSE(w.write(3, data, 2));
  EXPECT_FALSE(w.write(4, data + 2, 2));
}

TEST(GlobalRace, AtomicReleaseAndReadAcquireOrderWrites) {
  GlobalRaceDetector w;
  EXPECT_FALSE(w.write(0, data, 4));
  w.atomic(0, word);
  w.read(1, word);
  EXPECT_FALSE(w.write(1, data, 4));
}

TEST(GlobalRace, WritesAfterTheReleaseAreNotOrdered) {
  GlobalRaceDetector w;
  w.atomic(0, word);
  EXPECT_FALSE(w.write(0, data, 4));
  w.read(1, word);
  EXPECT_EQ(w.write(1, data, 4), 0u);
}

TEST(GlobalRace, EarlyReadsAndOtherWordsDoNotAcquire) {
  GlobalRaceDetector w;
  EXPECT_FALSE(w.write(0, data, 4));
  w.read(1, word);
  w.atomic(0, word);
  w.read(1, other_word);
  EXPECT_EQ(w.write(1, data, 4), 0u);
}

TEST(GlobalRace, HappensBeforeIsTransitive) {
  GlobalRaceDetector w;
  EXPECT_FALSE(w.write(0, data, 4));
  w.atomic(0, word);
  w.atomic(1, word);
  w.atomic(1, other_word);
  w.read(2, other_word);
  EXPECT_FALSE(w.write(2, data, 4));
}

}  // namespace
}  // namespace rocflash::sim
