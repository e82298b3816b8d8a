// The kernels "busy" and "meet" for the simulated GPU, as sim/host_kernel.h asks for it.
// Compiled as a shared object of its own and carried inside gpuload as bytes (busy_images.S);
// busy.ptx is the first for a real GPU.

#include <cstdint>

#include "sim/host_kernel.h"

namespace {

template <typename T>
T Parameter(void** params, int index) {
  return *static_cast<T*>(params[index]);
}

}  // namespace

extern "C" {

// busy(u64 ns, u64* stamps, u64 capacity, u64* counter): see busy.ptx.
extern const unsigned busy__param_sizes[];
const unsigned busy__param_sizes[] = {8, 8, 8, 8, 0};

unsigned long long busy__duration_ns(const ProrataHostLaunch*, void** params) {
  return Parameter<uint64_t>(params, 0);
}

void busy(const ProrataHostLaunch* launch, void** params) {
  auto* stamps = Parameter<uint64_t*>(params, 1);
  const auto capacity = Parameter<uint64_t>(params, 2);
  auto* counter = Parameter<uint64_t*>(params, 3);
  const uint64_t slot = __atomic_fetch_add(&counter[0], 1, __ATOMIC_RELAXED) % capacity;
  __atomic_fetch_add(&counter[1], launch->end_ns - launch->start_ns, __ATOMIC_RELAXED);
  stamps[2 * slot] = launch->start_ns;
  stamps[2 * slot + 1] = launch->end_ns;
}

// meet(u64 ns, u64* stamps, u64 capacity, u64* counter, u64 number, u32 size): as busy, but ends
// together with the other launches of this number, `size` of them in all.
extern const unsigned meet__param_sizes[];
const unsigned meet__param_sizes[] = {8, 8, 8, 8, 8, 4, 0};

unsigned long long meet__duration_ns(const ProrataHostLaunch* launch, void** params) {
  return busy__duration_ns(launch, params);
}

unsigned meet__rendezvous(const ProrataHostLaunch*, void** params, unsigned long long* number) {
  *number = Parameter<uint64_t>(params, 4);
  return Parameter<uint32_t>(params, 5);
}

void meet(const ProrataHostLaunch* launch, void** params) { busy(launch, params); }

}  // extern "C"
