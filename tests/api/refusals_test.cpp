// Every invalid call is rejected with the expected status and message, and writes no output.
#include "api/refusals.hpp"

#include <gtest/gtest.h>

#include <set>

namespace rocflash::test {
namespace {

class Refusal : public testing::TestWithParam<BadCall> {};

TEST_P(Refusal, HasStatusAndMessage) {
  const BadCall& bad = GetParam();
  const Size size;
  auto call = bad.packed ? std::make_unique<Call>(size, std::vector<std::int64_t>{3, 2},
                                                  std::vector<std::int64_t>{5, 4})
                         : std::make_unique<Call>(size);
  call->backend(ROCFLASH_BACKEND_REFERENCE);  // needs no workspace; a case may select another
  bad.corrupt(*call);
  std::vector<std::vector<std::byte>> before;
  std::vector<const HostTensor*> watched = call->outputs();
  for (const HostTensor* t : {&call->k, &call->v}) watched.push_back(t);  // decode writes them
  for (const HostTensor* t : watched) before.push_back(t->bytes());

  EXPECT_EQ(bad.invoke(*call), bad.status);
  EXPECT_EQ(rocflash_last_error(), bad.message);

  std::size_t n = 0;
  for (const HostTensor* t : watched)
    EXPECT_TRUE(t->bytes() == before[n++]) << "a rejected call wrote an output";
}

// The unchanged calls are accepted, so each refusal is due to the change.
TEST(Refusals, UnchangedCallsAreAccepted) {
  const Size size;
  Call dense(size), packed(size, {3, 2}, {5, 4});
  for (Call* c : {&dense, &packed}) {
    c->backend(ROCFLASH_BACKEND_REFERENCE);
    EXPECT_EQ(forward(*c), ROCFLASH_OK) << rocflash_last_error();
    EXPECT_EQ(backward(*c), ROCFLASH_OK) << rocflash_last_error();
  }
}

TEST(Refusals, AreManyAndDistinct) {
  std::set<std::string> messages;
  std::size_t count = 0;
  for (const auto& table : {bad_structs_and_tensors(), bad_shapes_and_lengths(), bad_options(),
                            bad_outputs(), bad_caches(), bad_quantized()}) {
    count += table.size();
    for (const BadCall& bad : table) messages.insert(bad.message);
  }
  EXPECT_GE(count, 180u);
  EXPECT_GE(messages.size(), 170u);
}

std::string name_of_case(const testing::TestParamInfo<BadCall>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Tensors, Refusal, testing::ValuesIn(bad_structs_and_tensors()),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Shapes, Refusal, testing::ValuesIn(bad_shapes_and_lengths()),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Options, Refusal, testing::ValuesIn(bad_options()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Caches, Refusal, testing::ValuesIn(bad_caches()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Outputs, Refusal, testing::ValuesIn(bad_outputs()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Quantized, Refusal, testing::ValuesIn(bad_quantized()), name_of_case);

}  // namespace
}  // namespace rocflash::test
