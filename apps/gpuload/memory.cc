#include "apps/gpuload/memory.h"

#include <algorithm>

namespace prorata::gpuload {
namespace {

constexpr uint64_t kRowBytes = 1 << 20;         // of pitched memory
constexpr uint64_t kArrayWidth = 16ULL * 1024;  // of an array, in 4-byte elements
constexpr const char* kOutOfMemory = "CUDA_ERROR_OUT_OF_MEMORY";

CUmemAllocationProp VmmProperties(const Gpu& gpu) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = gpu.device;
  return properties;
}

Result<Allocation> AllocateVmm(const Gpu& gpu, uint64_t bytes) {
  const Driver& driver = gpu.driver;
  const CUmemAllocationProp properties = VmmProperties(gpu);
  size_t granularity = 0;
  GPULOAD_CALL(driver, cuMemGetAllocationGranularity, &granularity, &properties,
               CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  Allocation made;
  made.bytes = bytes;
  made.mapped_bytes = (bytes + granularity - 1) / granularity * granularity;
  GPULOAD_CALL(driver, cuMemCreate, &made.handle, made.mapped_bytes, &properties, 0);
  GPULOAD_CALL(driver, cuMemAddressReserve, &made.address, made.mapped_bytes, 0, 0, 0);
  GPULOAD_CALL(driver, cuMemMap, made.address, made.mapped_bytes, 0, made.handle, 0);
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  GPULOAD_CALL(driver, cuMemSetAccess, made.address, made.mapped_bytes, &access, 1);
  return made;
}

// After a second reference was taken from the mapping and released, and then the first.
Result<Allocation> AllocateVmmReleased(const Gpu& gpu, uint64_t bytes) {
  const Driver& driver = gpu.driver;
  auto made = AllocateVmm(gpu, bytes);
  if (!made) return made;
  CUmemGenericAllocationHandle second = 0;
  GPULOAD_CALL(driver, cuMemRetainAllocationHandle, &second,
               reinterpret_cast<void*>(made->address));
  GPULOAD_CALL(driver, cuMemRelease, second);
  GPULOAD_CALL(driver, cuMemRelease, made->handle);
  made->handle = 0;
  return made;
}

Result<Allocation> AllocateArray(const Gpu& gpu, uint64_t bytes) {
  CUDA_ARRAY_DESCRIPTOR descriptor = {};
  descriptor.Width = kArrayWidth;
  descriptor.Height = std::max<uint64_t>(1, bytes / (4 * kArrayWidth));
  descriptor.Format = CU_AD_FORMAT_FLOAT;
  descriptor.NumChannels = 1;
  Allocation made;
  made.bytes = descriptor.Width * descriptor.Height * 4;
  GPULOAD_CALL(gpu.driver, cuArrayCreate_v2, &made.array, &descriptor);
  return made;
}

// Calls `visit(address, words, value)` for every row of an allocation: plain memory is one row.
template <typename Visit>
Status ForEachRow(const Allocation& allocation, uint32_t seed, Visit visit) {
  if (allocation.address == 0) return {};
  const uint64_t rows = allocation.row_bytes > 0 ? allocation.bytes / allocation.row_bytes : 1;
  const uint64_t row_words = allocation.bytes / rows / 4;
  for (uint64_t row = 0; row < rows; ++row) {
    const uint32_t value = seed * 2654435761u + static_cast<uint32_t>(row);
    if (auto ok = visit(allocation.address + row * allocation.pitch, row_words, value); !ok) {
      return ok;
    }
  }
  return {};
}

}  // namespace

Result<Allocation> Allocate(const Gpu& gpu, Allocator allocator, uint64_t bytes) {
  const Driver& driver = gpu.driver;
  Allocation made;
  made.bytes = bytes;
  switch (allocator) {
    case Allocator::kPlain:
      GPULOAD_CALL(driver, cuMemAlloc_v2, &made.address, bytes);
      return made;
    case Allocator::kAsync:
      GPULOAD_CALL(driver, cuMemAllocAsync, &made.address, bytes, nullptr);
      GPULOAD_CALL(driver, cuStreamSynchronize, nullptr);
      return made;
    case Allocator::kManaged:
      GPULOAD_CALL(driver, cuMemAllocManaged, &made.address, bytes, CU_MEM_ATTACH_GLOBAL);
      return made;
    case Allocator::kVmm:
      return AllocateVmm(gpu, bytes);
    case Allocator::kVmmReleased:
      return AllocateVmmReleased(gpu, bytes);
    case Allocator::kPitch: {
      made.row_bytes = std::min(bytes, kRowBytes);
      made.bytes = bytes / made.row_bytes * made.row_bytes;
      size_t pitch = 0;
      GPULOAD_CALL(driver, cuMemAllocPitch_v2, &made.address, &pitch, made.row_bytes,
                   bytes / made.row_bytes, 4);
      made.pitch = pitch;
      return made;
    }
    case Allocator::kArray:
      return AllocateArray(gpu, bytes);
  }
  return Fail("allocator", "unknown allocator");
}

Status Free(const Gpu& gpu, Allocator allocator, const Allocation& allocation) {
  const Driver& driver = gpu.driver;
  switch (allocator) {
    case Allocator::kAsync:
      GPULOAD_CALL(driver, cuMemFreeAsync, allocation.address, nullptr);
      return {};
    case Allocator::kVmm:
    case Allocator::kVmmReleased:
      GPULOAD_CALL(driver, cuMemUnmap, allocation.address, allocation.mapped_bytes);
      GPULOAD_CALL(driver, cuMemAddressFree, allocation.address, allocation.mapped_bytes);
      if (allocation.handle != 0) GPULOAD_CALL(driver, cuMemRelease, allocation.handle);
      return {};
    case Allocator::kArray:
      GPULOAD_CALL(driver, cuArrayDestroy, allocation.array);
      return {};
    case Allocator::kPlain:
    case Allocator::kManaged:
    case Allocator::kPitch:
      GPULOAD_CALL(driver, cuMemFree_v2, allocation.address);
      return {};
  }
  return {};
}

Status WritePattern(const Gpu& gpu, const Allocation& allocation, uint32_t seed) {
  return ForEachRow(allocation, seed,
                    [&](CUdeviceptr address, uint64_t words, uint32_t value) -> Status {
                      GPULOAD_CALL(gpu.driver, cuMemsetD32_v2, address, value, words);
                      return {};
                    });
}

Status CheckPattern(const Gpu& gpu, const Allocation& allocation, uint32_t seed) {
  return ForEachRow(
      allocation, seed, [&](CUdeviceptr address, uint64_t words, uint32_t value) -> Status {
        for (const uint64_t at : {uint64_t{0}, words / 2, words - 1}) {
          uint32_t seen = 0;
          GPULOAD_CALL(gpu.driver, cuMemcpyDtoH_v2, &seen, address + 4 * at, sizeof seen);
          if (seen != value) {
            return Fail("pattern", "word " + std::to_string(at) + " of an allocation is " +
                                       std::to_string(seen) + " instead of " +
                                       std::to_string(value));
          }
        }
        return {};
      });
}

namespace {

Result<MemoryOutcome> AllocateOnce(const Gpu& gpu, const Options& options) {
  MemoryOutcome outcome;
  while (options.until_refused || outcome.allocations < options.allocate_count) {
    auto made = Allocate(gpu, options.allocator, options.allocate_bytes);
    if (!made) {
      if (made.error().code != kOutOfMemory && !options.until_refused) {
        return std::unexpected(made.error());
      }
      outcome.refused = made.error().code;
      break;
    }
    ++outcome.allocations;
    outcome.bytes += made->bytes;
    outcome.held.push_back(*made);
  }
  return outcome;
}

}  // namespace

Result<MemoryOutcome> AllocateAll(const Gpu& gpu, const Options& options) {
  auto outcome = AllocateOnce(gpu, options);
  if (outcome && options.again) {
    for (const Allocation& allocation : outcome->held) {
      if (auto ok = Free(gpu, options.allocator, allocation); !ok) {
        return std::unexpected(ok.error());
      }
    }
    outcome = AllocateOnce(gpu, options);
  }
  if (!outcome || !options.verify) return outcome;
  // All are written before any is read: two that overlap are found.
  for (const auto visit : {WritePattern, CheckPattern}) {
    uint32_t seed = 0;
    for (const Allocation& allocation : outcome->held) {
      if (auto ok = visit(gpu, allocation, ++seed); !ok) return std::unexpected(ok.error());
    }
  }
  return outcome;
}

}  // namespace prorata::gpuload
