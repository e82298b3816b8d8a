// Advice about managed memory, prefetching, and what can be asked of a range. Nothing moves: all
// managed memory is on the device, and the CPU reaches it. The arguments are checked as the driver
// does, and what was said is remembered.

#include <algorithm>
#include <cstring>
#include <vector>

#include "generated/cuda_abi.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/stream/operation.h"

namespace prorata::simgpu::driver {
namespace {

constexpr uint64_t kPage = 4096;

}  // namespace

// A place as one number: a device's ordinal, or as the driver numbers the rest.
struct Place {
  CUmemLocationType type = CU_MEM_LOCATION_TYPE_INVALID;
  int id = CU_DEVICE_INVALID;
  bool operator==(const Place&) const = default;
};

// What was said of a managed allocation: of each piece from its address up to the next piece's.
struct Advice {
  struct Piece {
    bool read_mostly = false;
    Place preferred;
    Place prefetched;
    std::set<int> accessed_by;
  };
  std::map<uint64_t, Piece> pieces;

  // A piece begins at `address`.
  void Split(uint64_t address) {
    auto after = pieces.upper_bound(address);
    const auto piece = std::prev(after);
    if (piece->first != address) pieces.emplace(address, piece->second);
  }
  std::vector<Piece*> Range(uint64_t begin, uint64_t end) {
    Split(begin);
    Split(end);
    std::vector<Piece*> out;
    for (auto piece = pieces.find(begin); piece->first < end; ++piece) {
      out.push_back(&piece->second);
    }
    return out;
  }
};

namespace {

// The pieces of the range, which must be of one managed allocation. D().mutex held.
CUresult Pieces(CUdeviceptr address, size_t count, std::vector<Advice::Piece*>* out) {
  Memory* memory = FindMemory(address);
  if (count == 0 || !memory || memory->kind != Memory::Kind::kManaged ||
      count > memory->base + memory->bytes - address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!memory->advice) {
    memory->advice = std::make_shared<Advice>();
    memory->advice->pieces[memory->base] = {};
  }
  const uint64_t begin = std::max<uint64_t>(address / kPage * kPage, memory->base);
  *out = memory->advice->Range(begin, (address + count + kPage - 1) / kPage * kPage);
  return CUDA_SUCCESS;
}

CUresult PlaceOf(const CUmemLocation& location, Place* out) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      *out = {location.type, location.id};
      return EnterDevice(location.id);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      *out = {CU_MEM_LOCATION_TYPE_HOST, CU_DEVICE_CPU};
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (location.id < 0) return CUDA_ERROR_INVALID_VALUE;
      *out = {location.type, location.id};
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// As the calls before CUDA 12.2 gave it.
CUmemLocation LocationOf(CUdevice device) {
  if (device == CU_DEVICE_CPU) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

CUresult Advise(CUdeviceptr address, size_t count, CUmem_advise advice, CUmemLocation location) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  Place place;
  const bool placed = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                      advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                      advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (placed) {
    if (CUresult result = PlaceOf(location, &place)) return result;
  }
  if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(D().mutex);
  std::vector<Advice::Piece*> pieces;
  if (CUresult result = Pieces(address, count, &pieces)) return result;
  for (Advice::Piece* piece : pieces) {
    switch (advice) {
      case CU_MEM_ADVISE_SET_READ_MOSTLY:
      case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        piece->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
      case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        piece->preferred = place;  // none, when it is unset
        break;
      case CU_MEM_ADVISE_SET_ACCESSED_BY:
        piece->accessed_by.insert(place.id);
        break;
      case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        piece->accessed_by.erase(place.id);
        break;
    }
  }
  return CUDA_SUCCESS;
}

CUresult Prefetch(CUdeviceptr address, size_t count, CUmemLocation location, unsigned flags,
                  CUstream handle, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Place place;
  if (CUresult result = PlaceOf(location, &place)) return result;
  StreamRef stream;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindStream(handle, per_thread, ctx, &stream)) return result;
    std::vector<Advice::Piece*> pieces;
    if (CUresult result = Pieces(address, count, &pieces)) return result;
    for (Advice::Piece* piece : pieces) piece->prefetched = place;
  }
  return Enqueue(stream, EmptyCall{});
}

// The place that all pieces have, or none.
Place Common(const std::vector<Advice::Piece*>& pieces, Place Advice::Piece::* which) {
  const Place first = pieces.front()->*which;
  const bool all = std::all_of(pieces.begin(), pieces.end(),
                               [&](const Advice::Piece* piece) { return piece->*which == first; });
  return all ? first : Place{};
}

// The older attributes know devices and the CPU only.
int DeviceOfPlace(const Place& place) {
  if (place.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) return CU_DEVICE_CPU;
  return place.id;
}

CUresult RangeAttribute(void* data, size_t data_bytes, CUmem_range_attribute attribute,
                        CUdeviceptr address, size_t count) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!data || data_bytes == 0 || data_bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool list = attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
  if (!list && data_bytes != sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::vector<Advice::Piece*> pieces;
  if (CUresult result = Pieces(address, count, &pieces)) return result;
  const Place preferred = Common(pieces, &Advice::Piece::preferred);
  const Place prefetched = Common(pieces, &Advice::Piece::prefetched);
  std::vector<int> values(data_bytes / sizeof(int), CU_DEVICE_INVALID);
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      values[0] = std::all_of(pieces.begin(), pieces.end(),
                              [](const Advice::Piece* piece) { return piece->read_mostly; });
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      values[0] = DeviceOfPlace(preferred);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      values[0] = DeviceOfPlace(prefetched);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      values[0] = preferred.type;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      values[0] = preferred.id;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      values[0] = prefetched.type;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      values[0] = prefetched.id;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      size_t written = 0;
      for (int device : pieces.front()->accessed_by) {
        const bool all = std::all_of(
            pieces.begin(), pieces.end(),
            [device](const Advice::Piece* piece) { return piece->accessed_by.contains(device); });
        if (all && written < values.size()) values[written++] = device;
      }
      break;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(data, values.data(), data_bytes);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                        CUmemLocation location) {
  return Advise(devPtr, count, advice, location);
}
CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
  return Advise(devPtr, count, advice, LocationOf(device));
}
CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice device, CUstream hStream) {
  return Prefetch(devPtr, count, LocationOf(device), 0, hStream, false);
}
CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr devPtr, size_t count, CUdevice device,
                                 CUstream hStream) {
  return Prefetch(devPtr, count, LocationOf(device), 0, hStream, true);
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                               unsigned int flags, CUstream hStream) {
  return Prefetch(devPtr, count, location, flags, hStream, false);
}
CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                    unsigned int flags, CUstream hStream) {
  return Prefetch(devPtr, count, location, flags, hStream, true);
}
CUresult cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, size_t count) {
  return RangeAttribute(data, dataSize, attribute, devPtr, count);
}
CUresult cuMemRangeGetAttributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes,
                                 size_t numAttributes, CUdeviceptr devPtr, size_t count) {
  if (!data || !dataSizes || !attributes || numAttributes == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < numAttributes; ++i) {
    const CUresult result = RangeAttribute(data[i], dataSizes[i], attributes[i], devPtr, count);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
