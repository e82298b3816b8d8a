#include <cstdint>
#include <set>
#include <thread>

#include "bench/gpu_facts/figure.h"
#include "bench/gpu_facts/nvml.h"
#include "bench/gpu_facts/sections.h"
#include "bench/gpu_facts/worker.h"

namespace prorata::gpufacts {
namespace {

Result<uint64_t> FreeBytes(const gpuload::Gpu& gpu) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  GPULOAD_CALL(gpu.driver, cuMemGetInfo_v2, &free_bytes, &total_bytes);
  return free_bytes;
}

double Lost(uint64_t before, uint64_t after) {
  return static_cast<double>(before) - static_cast<double>(after);
}

struct ContextSamples {
  std::vector<double> device;   // by this process's cuMemGetInfo
  std::vector<double> process;  // by NVML, of the worker

  Status Add(const Bench& bench, const Nvml& nvml, int pid, uint64_t before) {
    auto now = FreeBytes(bench.gpu);
    if (!now) return std::unexpected(now.error());
    device.push_back(Lost(before, *now));
    if (auto used = nvml.ProcessUsedBytes(pid)) process.push_back(static_cast<double>(*used));
    return {};
  }
  nlohmann::json ToJson() const {
    return {{"by_device", Figure("bytes", device)}, {"by_process", Figure("bytes", process)}};
  }
};

// The driver gives a dead process's memory back a little after it is gone.
void AwaitFree(const Bench& bench, uint64_t wanted) {
  const auto end = HostClock::now() + std::chrono::seconds(2);
  while (HostClock::now() < end) {
    auto now = FreeBytes(bench.gpu);
    if (!now || *now >= wanted) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Several of one size, held together. Small ones share a slab: the first takes it, the others none.
Result<nlohmann::json> AllocateSize(const Bench& bench, uint64_t bytes) {
  constexpr size_t kCount = 16;
  const gpuload::Driver& driver = bench.gpu.driver;
  auto begin = FreeBytes(bench.gpu);
  if (!begin) return std::unexpected(begin.error());
  std::vector<CUdeviceptr> held;
  std::vector<double> losses;
  Status status;
  uint64_t before = *begin;
  while (held.size() < kCount && status) {
    CUdeviceptr address = 0;
    status = gpuload::Check(driver, driver.cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
    if (!status) break;
    held.push_back(address);
    auto after = FreeBytes(bench.gpu);
    if (!after) break;
    losses.push_back(Lost(before, *after));
    before = *after;
  }
  const double held_bytes = Lost(*begin, before);
  std::set<CUdeviceptr> slabs;
  uint64_t least_distance = 0;
  const std::set<CUdeviceptr> sorted(held.begin(), held.end());
  CUdeviceptr last = 0;
  for (const CUdeviceptr address : sorted) {
    slabs.insert(address / (2 * kMiB));
    if (last != 0 && (least_distance == 0 || address - last < least_distance)) {
      least_distance = address - last;
    }
    last = address;
  }
  for (const CUdeviceptr address : held) driver.cuMemFree_v2(address);
  GPUFACTS_TRY(status);
  auto end = FreeBytes(bench.gpu);
  if (!end) return std::unexpected(end.error());
  return nlohmann::json{{"asked", bytes},
                        {"count", held.size()},
                        {"first", losses.empty() ? 0 : losses.front()},
                        {"lost", Figure("bytes", losses)},
                        {"lost_together", held_bytes},
                        {"kept_after_free", Lost(*begin, *end)},
                        {"least_distance", least_distance},
                        {"slabs_of_2MiB_touched", slabs.size()}};
}

}  // namespace

Result<nlohmann::json> MeasureContextMemory(const Bench& bench) {
  const Nvml nvml = Nvml::Open(bench.gpu.uuid);
  ContextSamples bare;
  ContextSamples with_kernel;
  auto begin = FreeBytes(bench.gpu);
  if (!begin) return std::unexpected(begin.error());
  for (int i = 0; i < 3 && !bench.TimeIsUp(); ++i) {
    auto before = FreeBytes(bench.gpu);
    if (!before) return std::unexpected(before.error());
    auto worker = Worker::Start(bench.options, "context");
    if (!worker) return std::unexpected(worker.error());
    if (auto said = worker->Hear("context"); !said) return std::unexpected(said.error());
    GPUFACTS_TRY(bare.Add(bench, nvml, worker->pid(), *before));
    GPUFACTS_TRY(worker->Notify());
    if (auto said = worker->Hear("kernel"); !said) return std::unexpected(said.error());
    GPUFACTS_TRY(with_kernel.Add(bench, nvml, worker->pid(), *before));
    {
      const Worker ends = std::move(*worker);
    }
    AwaitFree(bench, *begin);
  }
  nlohmann::json facts = {{"context", bare.ToJson()}, {"after_a_kernel", with_kernel.ToJson()}};
  if (!nvml.missing().empty()) facts["nvml"] = nvml.missing();
  return facts;
}

Result<nlohmann::json> MeasureAllocation(const Bench& bench) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, bench.gpu.device};
  size_t granularity = 0;
  nlohmann::json facts = {{"sizes", nlohmann::json::array()}};
  // Devices without virtual memory management are measured all the same.
  const auto get = bench.gpu.driver.cuMemGetAllocationGranularity;
  if (get != nullptr &&
      get(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS) {
    facts["vmm_granularity"] = granularity;
  }
  // Around the slab of 2 MiB, on both sides of every border where rounding may change.
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{64} << 10, kMiB, kMiB + 1, 2 * kMiB,
                               2 * kMiB + 1, 3 * kMiB, 33 * kMiB}) {
    auto size = AllocateSize(bench, bytes);
    if (!size) return size;
    facts["sizes"].push_back(*size);
  }
  return facts;
}

}  // namespace prorata::gpufacts
