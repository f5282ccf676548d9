// One kernel of many out of PTX.
#include "gpu/ptx.hpp"

#include <gtest/gtest.h>

namespace rocflash::gpu {
namespace {

constexpr std::string_view module =
    ".version 7.0\n.target sm_80\n.address_size 64\n\n"
    ".extern .shared .align 16 .b8 shared[];\n"
    ".visible .entry first(\n\t.param .u64 first_0\n)\n.maxntid 128\n{\n\t{ // "
    "inner\n\tret;\n\t}\n}\n"
    ".global .align 4 .b8 table[4];\n"
    ".visible .entry first_long(\n)\n{\n\tret;\n}\n"
    ".visible .entry last()\n{\n\tret;\n}";

TEST(Ptx, KeepsTheKernelAndWhatAllShare) {
  EXPECT_EQ(cut_to_kernel(module, "first"),
            ".version 7.0\n.target sm_80\n.address_size 64\n\n"
            ".extern .shared .align 16 .b8 shared[];\n"
            ".visible .entry first(\n\t.param .u64 first_0\n)\n.maxntid 128\n{\n\t{ // "
            "inner\n\tret;\n\t}\n}\n"
            ".global .align 4 .b8 table[4];\n");
}

TEST(Ptx, TakesTheNameWhole) {
  const std::string cut = cut_to_kernel(module, "first_long");
  EXPECT_NE(cut.find(".entry first_long("), cut.npos);
  EXPECT_EQ(cut.find(".entry first("), cut.npos);
  EXPECT_EQ(cut.find(".entry last("), cut.npos);
}

TEST(Ptx, TheLastLineNeedsNoEnd) {
  const std::string cut = cut_to_kernel(module, "last");
  EXPECT_TRUE(cut.ends_with(".visible .entry last()\n{\n\tret;\n}"));
}

TEST(Ptx, NothingForAnUnknownName) {
  EXPECT_EQ(cut_to_kernel(module, "fir"), "");
  EXPECT_EQ(cut_to_kernel(module, ""), "");
  EXPECT_EQ(cut_to_kernel("", "first"), "");
}

}  // namespace
}  // namespace rocflash::gpu
