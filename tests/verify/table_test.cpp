// The table of cases is complete, has unique names, is reproducible and has only calls that the
// library accepts.
#include "verify/table.hpp"

#include <gtest/gtest.h>

#include <set>

#include "verify/scalar.hpp"
#include "verify/tensors.hpp"

namespace rocflash::verify {
namespace {

std::set<std::string> names(const std::vector<Case>& list) {
  std::set<std::string> all;
  for (const Case& c : list) EXPECT_TRUE(all.insert(c.name()).second) << c.name() << " twice";
  return all;
}

// Throws if the library refuses the case.
void accept(const Inputs& in, const Outputs& out) {
  if (in.what.decodes())
    workspace_size(in.problem(), in.append(), out.forward());
  else
    workspace_size(in.problem(), out.forward());
}

TEST(Table, quick_is_a_subset_of_full) {
  const auto quick = names(cases(Level::quick)), full = names(cases(Level::full));
  EXPECT_TRUE(std::includes(full.begin(), full.end(), quick.begin(), quick.end()));
  EXPECT_GT(quick.size(), 200u);
  EXPECT_GT(full.size(), 5000u);
}

TEST(Table, quick_has_every_feature_and_every_shape_in_every_dtype) {
  std::set<std::pair<std::string, DType>> found;
  for (const Case& c : cases(Level::quick)) {
    found.insert({c.feature, c.dtype});
    found.insert({c.shape, c.dtype});
  }
  for (const DType t : dtypes) {
    for (const Feature& f : features()) EXPECT_TRUE(found.contains({f.name, t})) << f.name;
    for (const Shape& s : shapes()) EXPECT_TRUE(found.contains({s.name, t})) << s.name;
  }
}

TEST(Table, a_filter_does_not_change_a_case) {
  const auto all = cases(Level::full, 7), some = cases(Level::full, 7, "everything/bf16/");
  ASSERT_EQ(some.size(), shapes().size());
  for (const Case& c : some) {
    const auto it =
        std::find_if(all.begin(), all.end(), [&](const Case& o) { return o.name() == c.name(); });
    ASSERT_NE(it, all.end());
    EXPECT_EQ(it->describe(), c.describe());
    EXPECT_EQ(Inputs(*it).fingerprint(), Inputs(c).fingerprint());
  }
  EXPECT_NE(cases(Level::full, 8, "plain/f32/64x64")[0].seed,
            cases(Level::full, 7, "plain/f32/64x64")[0].seed);
}

TEST(Table, the_library_accepts_every_quick_case) {
  for (const Case& c : cases(Level::quick)) {
    const Inputs in(c);
    const Outputs out(c, false);
    EXPECT_NO_THROW(accept(in, out)) << c.name();
    if (!c.has_backward()) continue;
    EXPECT_NO_THROW(workspace_size(in.problem(), out.backward(in))) << c.name();
  }
}

TEST(Table, the_library_accepts_mixed_cases) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Case c = mixed_case(DType::bf16, seed);
    const Inputs in(c);
    const Outputs out(c, false);
    EXPECT_NO_THROW(accept(in, out)) << c.describe();
    if (!c.has_backward()) continue;
    EXPECT_NO_THROW(workspace_size(in.problem(), out.backward(in))) << c.describe();
  }
}

}  // namespace
}  // namespace rocflash::verify
