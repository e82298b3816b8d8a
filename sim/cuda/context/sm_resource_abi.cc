#include "sim/cuda/context/sm_resource.h"

#include <algorithm>
#include <cstring>

#include "sim/cuda/from_c.h"

namespace prorata::simgpu::driver {
namespace {

// In CUdevResource::_internal_padding, which begins at no multiple of anything.
struct Sealed {
  uint64_t seal;
  uint64_t split;
  uint64_t sms[std::size(SmSet{}.bits)];
  uint32_t origin;
  int32_t device;
  uint32_t coscheduled;
  uint32_t unused;
};
static_assert(sizeof(Sealed) <= sizeof(CUdevResource{}._internal_padding));

// FNV-1a over what is sealed and what the program can see of it.
uint64_t SealOf(Sealed sealed, unsigned visible_count) {
  sealed.seal = visible_count;
  unsigned char bytes[sizeof(sealed)];
  std::memcpy(bytes, &sealed, sizeof(bytes));
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

}  // namespace

SmGrain GrainOf(int compute_major, bool ignore_coscheduling) {
  if (compute_major < 7) return {1, 1};
  if (compute_major == 7 || ignore_coscheduling) return {2, 2};
  if (compute_major == 8) return {4, 2};
  return {8, 8};
}

CUdevResource Seal(const SmResource& resource, const SmGrain& grain) {
  CUdevResource out = {};
  if (resource.sms.count() == 0) return out;  // of type invalid: nothing is left
  out.type = CU_DEV_RESOURCE_TYPE_SM;
  out.sm.smCount = resource.sms.count();
  out.sm.minSmPartitionSize = grain.smallest;
  out.sm.smCoscheduledAlignment = resource.coscheduled;
  Sealed sealed = {};
  sealed.split = resource.split;
  std::copy(std::begin(resource.sms.bits), std::end(resource.sms.bits), sealed.sms);
  sealed.origin = static_cast<uint32_t>(resource.origin);
  sealed.device = resource.device;
  sealed.coscheduled = resource.coscheduled;
  sealed.seal = SealOf(sealed, out.sm.smCount);
  std::memcpy(out._internal_padding, &sealed, sizeof(sealed));
  return out;
}

PRORATA_ENUMS_FROM_C CUresult Unseal(const CUdevResource& from, SmResource* to) {
  if (from.type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  Sealed sealed;
  std::memcpy(&sealed, from._internal_padding, sizeof(sealed));
  if (sealed.seal != SealOf(sealed, from.sm.smCount)) return CUDA_ERROR_INVALID_VALUE;
  to->device = sealed.device;
  to->origin = static_cast<SmResource::Origin>(sealed.origin);
  to->split = sealed.split;
  to->coscheduled = sealed.coscheduled;
  std::copy(std::begin(sealed.sms), std::end(sealed.sms), to->sms.bits);
  return CUDA_SUCCESS;
}

CUresult SplitSms(const SmSet& sms, uint32_t most, uint32_t min_count, const SmGrain& grain,
                  SmSplit* split) {
  const uint32_t count = sms.count();
  if (min_count > count) return CUDA_ERROR_INVALID_VALUE;
  const uint32_t rounded = (min_count + grain.step - 1) / grain.step * grain.step;
  const uint32_t size = std::max(grain.smallest, rounded);
  if (size > count) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  uint32_t sm = 0;
  for (uint32_t group = 0; group < std::min(most, count / size); ++group) {
    SmSet& set = split->groups.emplace_back();
    for (uint32_t taken = 0; taken < size; ++sm) {
      const SmSet one = SmSet::Range(sm, 1);
      if (!sms.Contains(one)) continue;
      set.Add(one);
      ++taken;
    }
  }
  split->rest = sms;
  for (const SmSet& group : split->groups) split->rest = split->rest.WithoutThose(group);
  return CUDA_SUCCESS;
}

CUresult JoinSms(const std::vector<SmResource>& resources, SmSet* sms) {
  const SmResource& first = resources.front();
  for (const SmResource& resource : resources) {
    const bool alone = resources.size() == 1;
    const bool together = resource.origin != SmResource::Origin::kWhole &&
                          resource.split == first.split && resource.device == first.device;
    if (!alone && (!together || sms->Overlaps(resource.sms))) {
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    sms->Add(resource.sms);
  }
  return CUDA_SUCCESS;
}

}  // namespace prorata::simgpu::driver
