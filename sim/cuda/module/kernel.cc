// What a launch costs, and how a host kernel is run.

#include <algorithm>

#include "sim/cuda/module/function.h"

namespace prorata::simgpu::driver {
namespace {

constexpr uint64_t kThreadsPerSm = 2048;
constexpr uint64_t kBlocksPerSm = 32;
constexpr int64_t kBaseNs = 2'000;
constexpr int64_t kWaveNs = 3'000;
constexpr uint64_t kAll = 1'000'000;

ProrataHostLaunch Describe(const KernelCall& call, unsigned sm_count) {
  ProrataHostLaunch launch{};
  launch.struct_bytes = sizeof(launch);
  std::copy_n(call.grid, 3, launch.grid);
  std::copy_n(call.block, 3, launch.block);
  launch.shared_bytes = call.shared_bytes;
  launch.sm_count = sm_count;
  return launch;
}

std::vector<void*> Pointers(const KernelCall& call) {
  std::vector<void*> out;
  auto* bytes = reinterpret_cast<char*>(const_cast<uint64_t*>(call.parameter_bytes.data()));
  for (uint32_t offset : call.parameter_offsets) out.push_back(bytes + offset);
  out.push_back(nullptr);
  return out;
}

KernelCost Estimate(const KernelCall& call, uint32_t sm_count) {
  const uint64_t block = uint64_t{call.block[0]} * call.block[1] * call.block[2];
  const uint64_t blocks = uint64_t{call.grid[0]} * call.grid[1] * call.grid[2];
  const uint64_t warps = (block + 31) / 32 * 32;
  const uint64_t per_sm = std::clamp<uint64_t>(kThreadsPerSm / warps, 1, kBlocksPerSm);
  const uint64_t at_once = per_sm * sm_count;
  const uint64_t waves = (blocks + at_once - 1) / at_once;
  KernelCost cost;
  cost.duration_ns = kBaseNs + static_cast<int64_t>(std::min<uint64_t>(waves, 1'000'000)) * kWaveNs;
  cost.sm_ppm = static_cast<uint32_t>(
      std::clamp<uint64_t>(blocks >= at_once ? kAll : blocks * kAll / at_once, 1, kAll));
  return cost;
}

// What a launch takes where these are all the SMs there are.
KernelCost CostOn(const KernelCall& call, uint32_t sm_count) {
  KernelCost cost = Estimate(call, sm_count);
  const Function& function = *call.function;
  if (!function.host_duration && !function.host_sm && !function.host_rendezvous) return cost;
  const ProrataHostLaunch launch = Describe(call, sm_count);
  std::vector<void*> pointers = Pointers(call);
  if (function.host_duration) {
    const unsigned long long asked = function.host_duration(&launch, pointers.data());
    cost.duration_ns =
        static_cast<int64_t>(std::clamp<unsigned long long>(asked, 1, INT64_MAX / 2));
  }
  if (function.host_sm) {
    cost.sm_ppm = static_cast<uint32_t>(
        std::clamp<uint64_t>(function.host_sm(&launch, pointers.data()), 1, kAll));
  }
  if (function.host_rendezvous) {
    unsigned long long number = 0;
    cost.rendezvous_size = function.host_rendezvous(&launch, pointers.data(), &number);
    cost.rendezvous = cost.rendezvous_size > 0 ? number : 0;
  }
  return cost;
}

}  // namespace

KernelCost CostOf(const KernelCall& call, uint32_t sm_count, uint32_t of) {
  KernelCost cost = CostOn(call, sm_count);
  cost.sm_ppm = static_cast<uint32_t>(std::max<uint64_t>(uint64_t{cost.sm_ppm} * sm_count / of, 1));
  return cost;
}

void RunHostKernel(const KernelCall& call, unsigned sm_count, const Action& action) {
  ProrataHostLaunch launch = Describe(call, sm_count);
  launch.start_ns = static_cast<unsigned long long>(action.started_ns);
  launch.end_ns = static_cast<unsigned long long>(action.ended_ns);
  std::vector<void*> pointers = Pointers(call);
  call.function->host_kernel(&launch, pointers.data());
}

}  // namespace prorata::simgpu::driver
