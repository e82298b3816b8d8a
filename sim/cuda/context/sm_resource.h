#pragma once

#include <vector>

#include "generated/cuda_abi.h"
#include "sim/core/types.h"

// SMs as programs hold them: CUdevResource, what cuDevSmResourceSplitByCount makes of one, and
// descriptors. Pure: no Driver, no machine.

namespace prorata::simgpu::driver {

// What a CUdevResource stands for. It travels in the program's memory, in the bytes that the header
// calls padding; a seal there tells those that the driver made, unchanged, from all others.
struct SmResource {
  enum class Origin : uint32_t { kWhole = 1, kGroup, kRemainder };  // the last two: of a split
  int device = 0;
  Origin origin = Origin::kWhole;  // kWhole: of a device or of a context
  uint64_t split = 0;              // which
  SmSet sms;
  uint32_t coscheduled = 0;  // CUdevSmResource::smCoscheduledAlignment
};

// How finely SMs can be divided.
struct SmGrain {
  uint32_t smallest = 1;
  uint32_t step = 1;
};
// As the driver's documents have it for an architecture (CUDA Driver API 13.0, Green Contexts).
SmGrain GrainOf(int compute_major, bool ignore_coscheduling);

CUdevResource Seal(const SmResource& resource, const SmGrain& grain);
// CUDA_ERROR_INVALID_RESOURCE_TYPE, or INVALID_VALUE for what the driver did not make.
CUresult Unseal(const CUdevResource& from, SmResource* to);

struct SmSplit {
  std::vector<SmSet> groups;  // all of one size, apart from each other
  SmSet rest;
};
// At most `most` groups of at least `min_count` SMs. CUDA_ERROR_INVALID_VALUE when that is more
// than there are, INVALID_RESOURCE_CONFIGURATION when it is after rounding.
CUresult SplitSms(const SmSet& sms, uint32_t most, uint32_t min_count, const SmGrain& grain,
                  SmSplit* split);

// The SMs of all: CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION for more than one unless they are
// different results of the same split.
CUresult JoinSms(const std::vector<SmResource>& resources, SmSet* sms);

}  // namespace prorata::simgpu::driver
