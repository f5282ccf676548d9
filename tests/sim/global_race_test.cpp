// Who wrote what, and who has been told of it.
#include "core/global_race.h"

#include <gtest/gtest.h>

namespace rocflash::sim {
namespace {

constexpr u64 data = 0x1000, word = 0x2000, other_word = 0x3000;

TEST(GlobalRace, TwoWritersOfTheSameBytes) {
  GlobalWrites w;
  EXPECT_FALSE(w.write(0, data, 8));
  EXPECT_FALSE(w.write(0, data, 8));
  EXPECT_FALSE(w.write(1, data + 8, 4));
  EXPECT_EQ(w.write(1, data + 4, 4), 0u);
}

TEST(GlobalRace, NeighbouringBytesAreNobodyElses) {
  GlobalWrites w;
  EXPECT_FALSE(w.write(3, data, 2));
  EXPECT_FALSE(w.write(4, data + 2, 2));
}

TEST(GlobalRace, HandedOverByAnAtomicThatTheOtherReads) {
  GlobalWrites w;
  EXPECT_FALSE(w.write(0, data, 4));
  w.atomic(0, word);
  w.read(1, word);
  EXPECT_FALSE(w.write(1, data, 4));
}

TEST(GlobalRace, OnlyWhatWasWrittenBeforeTheAtomic) {
  GlobalWrites w;
  w.atomic(0, word);
  EXPECT_FALSE(w.write(0, data, 4));
  w.read(1, word);
  EXPECT_EQ(w.write(1, data, 4), 0u);
}

TEST(GlobalRace, ReadTooEarlyOrElsewhereTellsNothing) {
  GlobalWrites w;
  EXPECT_FALSE(w.write(0, data, 4));
  w.read(1, word);
  w.atomic(0, word);
  w.read(1, other_word);
  EXPECT_EQ(w.write(1, data, 4), 0u);
}

TEST(GlobalRace, WhatOneHasBeenToldItPassesOn) {
  GlobalWrites w;
  EXPECT_FALSE(w.write(0, data, 4));
  w.atomic(0, word);
  w.atomic(1, word);
  w.atomic(1, other_word);
  w.read(2, other_word);
  EXPECT_FALSE(w.write(2, data, 4));
}

}  // namespace
}  // namespace rocflash::sim
