// A fake OpenMP runtime with libgomp's interface. It counts calls, runs them only on the caller's
// thread, and returns after `fake_delay_us`.
#include <chrono>
#include <thread>

extern "C" {
int fake_calls = 0;
int fake_delay_us = 0;
int omp_get_max_threads() { return 2; }
int omp_in_parallel() { return 0; }
void GOMP_parallel(void (*function)(void*), void* data, unsigned, unsigned) {
  ++fake_calls;
  function(data);
  std::this_thread::sleep_for(std::chrono::microseconds(fake_delay_us));
}
}
