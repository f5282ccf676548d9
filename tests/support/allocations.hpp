// Injects allocation failures: replaces malloc, calloc, realloc and the aligned variants of the
// test program, which the library under test then calls too.
#pragma once

#include <cstddef>
#include <functional>

namespace rocflash::test {

// Fails the allocation with this number, counted over all threads (1 is the next), or it and all
// that follow. 0 disables the failures.
enum class Failing { one, rest };
void fail_allocation(long number, Failing which);
// Fails allocations of at least this size. 0 disables the limit.
void fail_allocations_above(std::size_t bytes);
// Whether an allocation has failed since the last of these calls.
bool allocation_failed();

// Runs body in a forked child and returns its exit status, or minus the signal that terminated it.
// The child is killed after a minute.
int in_child(const std::function<int()>& body);

}  // namespace rocflash::test
