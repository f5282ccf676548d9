// A fake of torch's operator library, which depends on an OpenMP runtime of its own.
extern "C" {
void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
void* fake_operator() { return reinterpret_cast<void*>(&GOMP_parallel); }
}
