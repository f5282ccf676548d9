// The table of cases: feature x dtype x shape class. Tests and `rocflash verify` both use it, so a
// new feature needs only a row here to be verified everywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/case.hpp"

namespace rocflash::verify {

// A feature modifies a case that already has its shape. The order of the table is the order of the
// report.
struct Feature {
  std::string name;
  std::function<void(Case&)> apply;
};

struct Shape {
  std::string name;
  std::int64_t batch, heads, kv_heads, sq, sk;
  int head_dim, value_dim;
};

enum class Level : std::uint8_t {
  quick,  // every feature and every shape class in every dtype, but not the product
  full,   // the product, and random combinations of features
};

const std::vector<Feature>& features();
const std::vector<Shape>& shapes();
inline constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};

// The case for one cell of the table.
Case make_case(const Feature& feature, const Shape& shape, DType dtype, std::uint64_t seed);

// A case with a random shape and random features, determined by the seed.
Case mixed_case(DType dtype, std::uint64_t seed);

// All cases of a level whose name contains `filter`.
std::vector<Case> cases(Level level, std::uint64_t seed = 0, const std::string& filter = {});

}  // namespace rocflash::verify
