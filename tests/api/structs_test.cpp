// How structs are read from callers with older and newer headers than ours, shown on a struct that
// has grown once.
#include "api/structs.hpp"

#include <gtest/gtest.h>

namespace rocflash {
namespace {

struct Grown {
  std::size_t struct_size;
  std::int64_t first;
  std::int64_t later;
};

}  // namespace

template <>
inline constexpr std::size_t first_size<Grown> = offsetof(Grown, later);

namespace {

TEST(Structs, AnOldCallerHasNoLaterFields) {
  Grown g{offsetof(Grown, later), 5, 99};  // what lies behind its struct is not its struct
  const Grown read = read_struct("grown", &g);
  EXPECT_EQ(read.first, 5);
  EXPECT_EQ(read.later, 0);
}

TEST(Structs, ACallerOfTodayHasThem) {
  Grown g{sizeof(Grown), 5, 99};
  EXPECT_EQ(read_struct("grown", &g).later, 99);
}

TEST(Structs, ANewerCallerMustLeaveTheRestZero) {
  struct {
    Grown today;
    std::int64_t tomorrow;
  } g{{sizeof g, 5, 99}, 0};
  EXPECT_EQ(read_struct("grown", &g.today).later, 99);
  g.tomorrow = std::int64_t{1} << 56;
  EXPECT_THROW(read_struct("grown", &g.today), Refusal);
}

TEST(Structs, AnswersFillNoMoreThanTheCallerHas) {
  Grown g{offsetof(Grown, later), 1, 99};
  write_struct("grown", &g, Grown{0, 7, 8});
  EXPECT_EQ(g.struct_size, offsetof(Grown, later));
  EXPECT_EQ(g.first, 7);
  EXPECT_EQ(g.later, 99);
}

TEST(Structs, SizesThatWereNeverSetAreRefused) {
  for (const std::size_t size :
       {std::size_t{0}, offsetof(Grown, later) - 1, std::size_t{4097}, SIZE_MAX}) {
    Grown g{size, 0, 0};
    EXPECT_THROW(read_struct("grown", &g), Refusal) << size;
    EXPECT_THROW(write_struct("grown", &g, Grown{}), Refusal) << size;
  }
}

}  // namespace
}  // namespace rocflash
