// Prints the peak rate of this machine's f32 multiply-adds in GFLOP/s: the upper bound of f32
// kernels.
//   cpu_fma_peak [THREADS [avx2|avx512]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr int steps = 1 << 22, sums = 12;

// A step of independent multiply-adds, as many as hide their latency. In assembly, because a
// compiler would need its options changed for it; the numbers are whatever is in the registers,
// made 0.
#define FMA(size, n) "vfmadd231ps %%" size "0, %%" size "0, %%" size #n "\n"
#define ZERO(n) "vxorps %%xmm" #n ", %%xmm" #n ", %%xmm" #n "\n"
#define ALL(what) \
  what(1) what(2) what(3) what(4) what(5) what(6) what(7) what(8) what(9) what(10) what(11) what(12)
#define EIGHT(n) FMA("ymm", n)
#define SIXTEEN(n) FMA("zmm", n)
#define RUN(step)                                                                              \
  int left = steps;                                                                            \
  __asm__ volatile(ZERO(0) ALL(ZERO) "1:\n" ALL(step) "dec %0\n jnz 1b\n vzeroupper\n"         \
                   : "+r"(left)::"cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", \
                     "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12")
void avx2() { RUN(EIGHT); }
void avx512() { RUN(SIXTEEN); }

struct Path {
  void (*run)();
  double operations;
};

double gflops(const Path& path, int threads) {
  double best = 0;
  for (int round = 0; round < 10; ++round) {
    std::vector<std::thread> helpers;
    const auto begin = std::chrono::steady_clock::now();
    for (int n = 1; n < threads; ++n) helpers.emplace_back(path.run);
    path.run();
    for (std::thread& t : helpers) t.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, threads * path.operations / took.count() / 1e9);
  }
  return best;
}

}  // namespace

int main(int count, char** words) {
  const int threads =
      count > 1 ? std::max(1, static_cast<int>(std::strtol(words[1], nullptr, 10))) : 1;
  const std::string_view wanted = count > 2 ? words[2] : "";
  const bool wide = __builtin_cpu_supports("avx512f") && wanted != "avx2";
  if (!wide && !__builtin_cpu_supports("fma")) {
    std::fprintf(stderr, "cpu_fma_peak: this machine has no fused multiply-add\n");
    return 1;
  }
  const Path path =
      wide ? Path{avx512, 2.0 * 16 * sums * steps} : Path{avx2, 2.0 * 8 * sums * steps};
  std::printf("%.1f\n", gflops(path, threads));
}
