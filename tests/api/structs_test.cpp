// Reading structs of callers with older and newer headers, for a struct that has grown once.
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

TEST(Structs, FieldsUnknownToAnOldCallerAreZero) {
  Grown g{offsetof(Grown, later), 5, 99};  // what follows the old struct is ignored
  const Grown read = read_struct("grown", &g);
  EXPECT_EQ(read.first, 5);
  EXPECT_EQ(read.later, 0);
}

TEST(Structs, ACurrentCallerHasAllFields) {
  Grown g{sizeof(Grown), 5, 99};
  EXPECT_EQ(read_struct("grown", &g).later, 99);
}

TEST(Structs, UnknownFieldsOfANewerCallerMustBeZero) {
  struct {
    Grown known;
    std::int64_t added;
  } g{{sizeof g, 5, 99}, 0};
  EXPECT_EQ(read_struct("grown", &g.known).later, 99);
  g.added = std::int64_t{1} << 56;
  EXPECT_THROW(read_struct("grown", &g.known), Refusal);
}

TEST(Structs, WritesNoMoreThanTheCallersSize) {
  Grown g{offsetof(Grown, later), 1, 99};
  write_struct("grown", &g, Grown{0, 7, 8});
  EXPECT_EQ(g.struct_size, offsetof(Grown, later));
  EXPECT_EQ(g.first, 7);
  EXPECT_EQ(g.later, 99);
}

TEST(Structs, InvalidSizesAreRejected) {
  for (const std::size_t size :
       {std::size_t{0}, offsetof(Grown, later) - 1, offsetof(Grown, later) + 1, sizeof(Grown) + 4,
        std::size_t{4097}, SIZE_MAX}) {
    Grown g{size, 0, 0};
    EXPECT_THROW(read_struct("grown", &g), Refusal) << size;
    EXPECT_THROW(write_struct("grown", &g, Grown{}), Refusal) << size;
  }
}

}  // namespace
}  // namespace rocflash
