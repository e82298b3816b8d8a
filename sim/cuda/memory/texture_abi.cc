// Texture and surface objects: descriptions that a program gets back. No kernel reads through them.

#include <optional>
#include <unordered_map>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/memory/array.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

struct Object {
  bool surface = false;
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC texture{};
  std::optional<CUDA_RESOURCE_VIEW_DESC> view;
};

// Leaked, like the Driver. Under its mutex. Objects are numbers; 0 is none.
std::unordered_map<unsigned long long, Object>& Objects() {
  static auto* const objects = new std::unordered_map<unsigned long long, Object>;
  return *objects;
}

// cuTexObjectCreate: linear memory is aligned to the device's texture alignment, pitches to its
// pitch alignment, as cuDeviceGetAttribute tells them.
constexpr uint64_t kTextureAlignment = 512;
constexpr uint64_t kTexturePitchAlignment = 32;

CUresult CheckResource(const CUDA_RESOURCE_DESC& resource, bool surface) {
  if (resource.flags != 0) return CUDA_ERROR_INVALID_VALUE;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      Array* array;
      if (FindArray(resource.res.array.hArray, &array) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      const bool usable = !surface || (array->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST);
      return usable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      return !surface && resource.res.mipmap.hMipmappedArray ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = resource.res.linear;
      const bool usable = !surface && linear.sizeInBytes > 0 &&
                          linear.devPtr % kTextureAlignment == 0 &&
                          ElementBytes(linear.format, linear.numChannels) != 0 &&
                          DeviceRangeIsValid(linear.devPtr, linear.sizeInBytes);
      return usable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& pitch = resource.res.pitch2D;
      const uint64_t row = pitch.width * ElementBytes(pitch.format, pitch.numChannels);
      const bool usable =
          !surface && row > 0 && pitch.height > 0 && pitch.devPtr % kTextureAlignment == 0 &&
          pitch.pitchInBytes % kTexturePitchAlignment == 0 && pitch.pitchInBytes >= row &&
          DeviceRangeIsValid(pitch.devPtr, (pitch.height - 1) * pitch.pitchInBytes + row);
      return usable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult CreateObject(unsigned long long* out, const CUDA_RESOURCE_DESC* resource, Object object) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!out || !resource) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  if (CUresult result = CheckResource(*resource, object.surface)) return result;
  object.resource = *resource;
  *out = D().next_id++;
  Objects()[*out] = object;
  return CUDA_SUCCESS;
}

CUresult Destroy(unsigned long long handle, bool surface) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  auto found = Objects().find(handle);
  if (found == Objects().end() || found->second.surface != surface) return CUDA_ERROR_INVALID_VALUE;
  Objects().erase(found);
  return CUDA_SUCCESS;
}

template <typename T, typename Get>
CUresult ReadObject(T* out, unsigned long long handle, bool surface, Get get) {
  if (CUresult result = EnterCall()) return result;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  auto found = Objects().find(handle);
  if (found == Objects().end() || found->second.surface != surface) return CUDA_ERROR_INVALID_VALUE;
  return get(found->second);
}

}  // namespace

CUresult cuTexObjectCreate(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc,
                           const CUDA_TEXTURE_DESC* pTexDesc,
                           const CUDA_RESOURCE_VIEW_DESC* pResViewDesc) {
  if (!pTexDesc) return CUDA_ERROR_INVALID_VALUE;
  Object object;
  object.texture = *pTexDesc;
  if (pResViewDesc) {
    // A view is of an array only.
    if (pResDesc && (pResDesc->resType == CU_RESOURCE_TYPE_LINEAR ||
                     pResDesc->resType == CU_RESOURCE_TYPE_PITCH2D)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    object.view = *pResViewDesc;
  }
  return CreateObject(pTexObject, pResDesc, object);
}
CUresult cuTexObjectDestroy(CUtexObject texObject) { return Destroy(texObject, false); }
CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUtexObject texObject) {
  return ReadObject(pResDesc, texObject, false,
                    [&](const Object& o) { return *pResDesc = o.resource, CUDA_SUCCESS; });
}
CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* pTexDesc, CUtexObject texObject) {
  return ReadObject(pTexDesc, texObject, false,
                    [&](const Object& o) { return *pTexDesc = o.texture, CUDA_SUCCESS; });
}
CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* pResViewDesc,
                                        CUtexObject texObject) {
  return ReadObject(pResViewDesc, texObject, false, [&](const Object& o) {
    if (!o.view) return CUDA_ERROR_INVALID_VALUE;
    *pResViewDesc = *o.view;
    return CUDA_SUCCESS;
  });
}

CUresult cuSurfObjectCreate(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
  Object object;
  object.surface = true;
  return CreateObject(pSurfObject, pResDesc, object);
}
CUresult cuSurfObjectDestroy(CUsurfObject surfObject) { return Destroy(surfObject, true); }
CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUsurfObject surfObject) {
  return ReadObject(pResDesc, surfObject, true,
                    [&](const Object& o) { return *pResDesc = o.resource, CUDA_SUCCESS; });
}
