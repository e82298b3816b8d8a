#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/gpuload/gpu.h"
#include "apps/gpuload/options.h"

namespace prorata::gpuload {

// One allocation, by any of the allocators.
struct Allocation {
  CUdeviceptr address = 0;  // 0 for an array
  uint64_t bytes = 0;       // as asked for
  uint64_t row_bytes = 0;   // of a pitched one: used bytes of a row; 0 otherwise
  uint64_t pitch = 0;
  CUmemGenericAllocationHandle handle = 0;  // 0 once released
  uint64_t mapped_bytes = 0;                // of a VMM one
  CUarray array = nullptr;
};

Result<Allocation> Allocate(const Gpu& gpu, Allocator allocator, uint64_t bytes);
Status Free(const Gpu& gpu, Allocator allocator, const Allocation& allocation);

// Fills an allocation with words made of `seed`; reads some of them back, and an error says which
// differs. Arrays are left alone.
Status WritePattern(const Gpu& gpu, const Allocation& allocation, uint32_t seed);
Status CheckPattern(const Gpu& gpu, const Allocation& allocation, uint32_t seed);

struct MemoryOutcome {
  uint64_t allocations = 0;
  uint64_t bytes = 0;
  std::string refused;  // code of the error that ended it
  std::vector<Allocation> held;
};
// As --allocate, --count, --until-refused and --again say. An allocation that is refused is an
// outcome; what fails otherwise is an error.
Result<MemoryOutcome> AllocateAll(const Gpu& gpu, const Options& options);

struct StressOutcome {
  uint64_t allocations = 0;
  uint64_t frees = 0;
  uint64_t refused = 0;
  uint64_t peak_bytes = 0;  // of the process, as it counts itself
  std::string first_error;  // that is not out of memory
};
// Allocates and frees at random in Options::threads threads for Options::seconds, or until `stop`.
StressOutcome Stress(const Gpu& gpu, const Options& options, const std::atomic<bool>& stop);

}  // namespace prorata::gpuload
