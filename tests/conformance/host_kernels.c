// Kernels for the tests of the simulated driver.
#include "sim/host_kernel.h"

const unsigned add__param_sizes[] = {8, 8, 8, 4, 0};

void add(const ProrataHostLaunch* launch, void** params) {
  const float* a = *(const float**)params[0];
  const float* b = *(const float**)params[1];
  float* c = *(float**)params[2];
  const int n = *(const int*)params[3];
  const unsigned long long threads = (unsigned long long)launch->grid[0] * launch->block[0];
  for (unsigned long long i = 0; i < threads && i < (unsigned long long)n; ++i) c[i] = a[i] + b[i];
}

// Multiplies and adds one word: the order of two of these shows in the result.
const unsigned step__param_sizes[] = {8, 8, 8, 8, 0};

void step(const ProrataHostLaunch* launch, void** params) {
  (void)launch;
  unsigned long long* word = *(unsigned long long**)params[0];
  *word = *word * *(unsigned long long*)params[1] + *(unsigned long long*)params[2];
}

unsigned long long step__duration_ns(const ProrataHostLaunch* launch, void** params) {
  (void)launch;
  return *(unsigned long long*)params[3];
}

// Writes when it ran: start, end.
const unsigned stamp__param_sizes[] = {8, 8, 0};

void stamp(const ProrataHostLaunch* launch, void** params) {
  unsigned long long* out = *(unsigned long long**)params[0];
  out[0] = launch->start_ns;
  out[1] = launch->end_ns;
}

unsigned long long stamp__duration_ns(const ProrataHostLaunch* launch, void** params) {
  (void)launch;
  return *(unsigned long long*)params[1];
}

// Parameters of odd sizes, to see that each is copied and placed.
const unsigned mixed__param_sizes[] = {1, 2, 8, 4, 12, 8, 0};

void mixed(const ProrataHostLaunch* launch, void** params) {
  unsigned long long* out = *(unsigned long long**)params[5];
  out[0] = *(unsigned char*)params[0];
  out[1] = *(unsigned short*)params[1];
  out[2] = *(unsigned long long*)params[2];
  out[3] = *(unsigned*)params[3];
  out[4] = ((unsigned*)params[4])[2];
  out[5] = launch->end_ns - launch->start_ns;
  out[6] = launch->shared_bytes;
}

unsigned long long host_word = 17;
const char* const prorata_globals[] = {"host_word", 0};
