#pragma once

#include <cstdio>
#include <cstdlib>

// CHECK: a bug in our own code. Daemons, tools and tests only; never in the client library, which
// lives in somebody else's process, and never for bad input, which is a Result.
#define PRORATA_CHECK(condition)                                                              \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      std::fprintf(stderr, "prorata: bug: CHECK(%s) failed at %s:%d\n", #condition, __FILE__, \
                   __LINE__);                                                                 \
      std::abort();                                                                           \
    }                                                                                         \
  } while (false)
