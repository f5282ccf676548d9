// Extraction of one kernel from a PTX module.
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

TEST(Ptx, KeepsTheKernelAndSharedDeclarations) {
  EXPECT_EQ(extract_kernel(module, "first"),
            ".version 7.0\n.target sm_80\n.address_size 64\n\n"
            ".extern .shared .align 16 .b8 shared[];\n"
            ".visible .entry first(\n\t.param .u64 first_0\n)\n.maxntid 128\n{\n\t{ // "
            "inner\n\tret;\n\t}\n}\n"
            ".global .align 4 .b8 table[4];\n");
}

TEST(Ptx, MatchesTheWholeName) {
  const std::string ptx = extract_kernel(module, "first_long");
  EXPECT_NE(ptx.find(".entry first_long("), ptx.npos);
  EXPECT_EQ(ptx.find(".entry first("), ptx.npos);
  EXPECT_EQ(ptx.find(".entry last("), ptx.npos);
}

TEST(Ptx, LastLineMayLackANewline) {
  const std::string ptx = extract_kernel(module, "last");
  EXPECT_TRUE(ptx.ends_with(".visible .entry last()\n{\n\tret;\n}"));
}

TEST(Ptx, EmptyForAnUnknownKernel) {
  EXPECT_EQ(extract_kernel(module, "fir"), "");
  EXPECT_EQ(extract_kernel(module, ""), "");
  EXPECT_EQ(extract_kernel("", "first"), "");
}

}  // namespace
}  // namespace rocflash::gpu
