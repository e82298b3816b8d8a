#include <cstdint>

#include "bench/gpu_facts/bench.h"
#include "bench/gpu_facts/figure.h"
#include "bench/gpu_facts/sections.h"

namespace prorata::gpufacts {
namespace {

Result<uint64_t> Reserved(const gpuload::Driver& driver, CUmemoryPool pool) {
  cuuint64_t bytes = 0;
  GPULOAD_CALL(driver, cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
  return bytes;
}

// Allocates `bytes` again and again and notes by how much the pool grew each time that it did.
Result<nlohmann::json> Grow(const Bench& bench, CUmemoryPool pool, const Stream& stream,
                            uint64_t bytes) {
  constexpr uint64_t kMaxBytes = 256 * kMiB;
  constexpr size_t kMaxAllocations = 4096;
  constexpr size_t kSteps = 4;
  const gpuload::Driver& driver = bench.gpu.driver;
  GPULOAD_CALL(driver, cuMemPoolTrimTo, pool, 0);
  auto before = Reserved(driver, pool);
  if (!before) return std::unexpected(before.error());
  std::vector<CUdeviceptr> held;
  std::vector<double> steps;
  Status status;
  const size_t most = std::max<size_t>(2, std::min(kMaxAllocations, kMaxBytes / bytes));
  for (uint64_t reserved = *before; held.size() < most && steps.size() < kSteps;) {
    CUdeviceptr address = 0;
    const CUresult result = driver.cuMemAllocAsync(&address, bytes, stream.get());
    status = gpuload::Check(driver, result, "cuMemAllocAsync");
    if (!status) break;
    held.push_back(address);
    auto now = Reserved(driver, pool);
    if (!now) break;
    if (*now > reserved) steps.push_back(static_cast<double>(*now - reserved));
    reserved = *now;
  }
  const size_t count = held.size();
  for (const CUdeviceptr address : held) driver.cuMemFreeAsync(address, stream.get());
  GPUFACTS_TRY(stream.Synchronize());
  GPUFACTS_TRY(status);
  auto kept = Reserved(driver, pool);
  if (!kept) return std::unexpected(kept.error());
  GPULOAD_CALL(driver, cuMemPoolTrimTo, pool, 0);
  auto trimmed = Reserved(driver, pool);
  if (!trimmed) return std::unexpected(trimmed.error());
  return nlohmann::json{{"asked", bytes},
                        {"allocations", count},
                        {"reserved_before", *before},
                        {"first_steps", steps},
                        {"step", Figure("bytes", steps)},
                        {"reserved_after_free", *kept},
                        {"reserved_after_trim", *trimmed}};
}

}  // namespace

Result<nlohmann::json> MeasurePool(const Bench& bench) {
  const gpuload::Driver& driver = bench.gpu.driver;
  if (driver.cuMemAllocAsync == nullptr || driver.cuMemFreeAsync == nullptr) {
    return Fail("missing", "the driver has no memory pools");
  }
  auto stream = Stream::Make(bench.gpu);
  if (!stream) return std::unexpected(stream.error());
  CUmemoryPool pool = nullptr;
  GPULOAD_CALL(driver, cuDeviceGetDefaultMemPool, &pool, bench.gpu.device);
  nlohmann::json facts = {{"sizes", nlohmann::json::array()}};
  for (const uint64_t bytes : {64 * kKiB, kMiB, 10 * kMiB, 33 * kMiB, 100 * kMiB}) {
    auto size = Grow(bench, pool, *stream, bytes);
    if (!size) return size;
    facts["sizes"].push_back(*size);
  }
  return facts;
}

}  // namespace prorata::gpufacts
