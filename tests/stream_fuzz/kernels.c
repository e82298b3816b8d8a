// The kernel of the stream programs, for the simulated GPU.
#include "sim/host_kernel.h"

// mix(u64* word, const u64* from, u64 times, u64 plus, u64 ns): the order of two of these shows in
// the word.
const unsigned mix__param_sizes[] = {8, 8, 8, 8, 8, 0};

void mix(const ProrataHostLaunch* launch, void** params) {
  (void)launch;
  unsigned long long* word = *(unsigned long long**)params[0];
  const unsigned long long* from = *(const unsigned long long**)params[1];
  *word = *word * *(unsigned long long*)params[2] + *from + *(unsigned long long*)params[3];
}

unsigned long long mix__duration_ns(const ProrataHostLaunch* launch, void** params) {
  (void)launch;
  return *(unsigned long long*)params[4];
}
