// Timing of the benchmarks: clock, number of rounds and statistics.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace rocflash::cli {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Times {
 public:
  void add(double seconds) { seconds_.push_back(seconds); }
  int count() const { return static_cast<int>(seconds_.size()); }
  double best() const { return *std::min_element(seconds_.begin(), seconds_.end()); }
  double median() const {
    std::vector<double> sorted = seconds_;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t middle = sorted.size() / 2;
    return sorted.size() % 2 != 0 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }

 private:
  std::vector<double> seconds_;
};

// Without --repeat: at least three rounds, so that the median ignores one outlier, and further
// rounds until half a second has passed.
inline bool enough(int repeat, int rounds, Clock::time_point start) {
  if (repeat > 0) return rounds >= repeat;
  return rounds >= 3 && (rounds >= 200 || seconds_since(start) > 0.5);
}

}  // namespace rocflash::cli
