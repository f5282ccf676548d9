// Memory that runs out on request: the C library's malloc and its kin in the test's program, which
// the library under test then calls too.
#pragma once

#include <cstddef>
#include <functional>

namespace rocflash::test {

// Which allocations fail from now on, counted over all threads: the one with this number (1 is the
// next), or it and all that follow. 0 ends it.
enum class Failing { one, rest };
void fail_allocation(long number, Failing which);
// Allocations of at least so many bytes fail. 0 ends it.
void fail_allocations_above(std::size_t bytes);
// Whether one has failed since the last request.
bool allocation_failed();

// Runs body in a forked child and returns its exit status, or minus the signal that ended it. The
// child has a minute.
int in_child(const std::function<int()>& body);

}  // namespace rocflash::test
