// Arrays and mipmapped arrays.

#include "sim/cuda/memory/array.h"

#include <algorithm>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/from_c.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/external.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/sparse.h"

namespace prorata::simgpu::driver {
namespace {

struct Mipmap {
  Context* ctx = nullptr;
  uint64_t address = 0;
  uint64_t bytes = 0;
  std::shared_ptr<Sparse> sparse;
  std::shared_ptr<ExternalView> external;  // it is mapped onto this; owns no memory of the device
  std::vector<std::unique_ptr<Array>> levels;
};

// Leaked, like the Driver.
struct Arrays {
  std::unordered_map<const void*, std::unique_ptr<Array>> arrays;
  std::unordered_map<const void*, Array*> levels;  // of mipmapped arrays, by handle
  std::unordered_map<const void*, std::unique_ptr<Mipmap>> mipmaps;
};

Arrays& A() {
  static Arrays* const arrays = new Arrays;
  return *arrays;
}

}  // namespace

unsigned ElementBytes(CUarray_format format, unsigned channels) {
  if (channels != 1 && channels != 2 && channels != 4) return 0;
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4 * channels;
    default:
      return 0;
  }
}

CUresult FindArray(CUarray handle, Array** out) {
  if (auto array = A().arrays.find(handle); array != A().arrays.end()) {
    *out = array->second.get();
    return CUDA_SUCCESS;
  }
  if (auto level = A().levels.find(handle); level != A().levels.end()) {
    *out = level->second;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

PRORATA_ENUMS_FROM_C CUresult FindSparse(const CUarrayMapInfo& info, std::shared_ptr<Sparse>* out) {
  if (info.resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
    auto found = A().mipmaps.find(info.resource.mipmap);
    if (found == A().mipmaps.end()) return CUDA_ERROR_INVALID_HANDLE;
    *out = found->second->sparse;
  } else if (info.resourceType == CU_RESOURCE_TYPE_ARRAY) {
    // A level of a mipmapped array is not mapped by itself.
    if (A().levels.contains(info.resource.array)) return CUDA_ERROR_INVALID_VALUE;
    auto found = A().arrays.find(info.resource.array);
    if (found == A().arrays.end()) return CUDA_ERROR_INVALID_HANDLE;
    *out = found->second->sparse;
  }
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void ForgetArrays(Context* ctx) {
  ForgetTileChanges(ctx);
  for (const auto& [handle, array] : A().arrays) {
    if (array->ctx == ctx && array->sparse) DropSparse(array->sparse.get());
  }
  for (const auto& [handle, mipmap] : A().mipmaps) {
    if (mipmap->ctx == ctx && mipmap->sparse) DropSparse(mipmap->sparse.get());
  }
  std::erase_if(A().arrays, [&](const auto& entry) { return entry.second->ctx == ctx; });
  std::erase_if(A().levels, [&](const auto& entry) { return entry.second->ctx == ctx; });
  std::erase_if(A().mipmaps, [&](const auto& entry) { return entry.second->ctx == ctx; });
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// Largest extents, as cuDeviceGetAttribute says (MAXIMUM_TEXTURE...).
struct Extents {
  size_t width, height, depth;
};
constexpr Extents kMax1D = {131072, 0, 0};
constexpr Extents kMax2D = {131072, 65536, 0};
constexpr Extents kMax3D = {16384, 16384, 16384};
constexpr Extents kMax3DAlternate = {8192, 8192, 32768};
constexpr Extents kMax1DLayered = {32768, 0, 2048};
constexpr Extents kMax2DLayered = {32768, 32768, 2048};
constexpr Extents kMaxCube = {32768, 32768, 6};
constexpr Extents kMaxCubeLayered = {32768, 32768, 2046};

bool Fits(const CUDA_ARRAY3D_DESCRIPTOR& shape, const Extents& most) {
  return shape.Width <= most.width && shape.Height <= most.height && shape.Depth <= most.depth;
}

bool ExtentsAreValid(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  const bool layered = shape.Flags & CUDA_ARRAY3D_LAYERED;
  if ((shape.Flags & CUDA_ARRAY3D_CUBEMAP) && !Broken(Rule::kCubesAreCubes)) {
    const bool faces = layered ? shape.Depth > 0 && shape.Depth % 6 == 0 : shape.Depth == 6;
    return faces && shape.Width == shape.Height &&
           Fits(shape, layered ? kMaxCubeLayered : kMaxCube);
  }
  if (layered) {
    return shape.Depth > 0 && Fits(shape, shape.Height ? kMax2DLayered : kMax1DLayered);
  }
  if (shape.Depth > 0) return Fits(shape, kMax3D) || Fits(shape, kMax3DAlternate);
  return Fits(shape, shape.Height > 0 ? kMax2D : kMax1D);
}

// The shape of an array, or of a level of a mipmapped one; no memory yet.
CUresult Shape(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, Array* array) {
  const unsigned element = ElementBytes(descriptor.Format, descriptor.NumChannels);
  if (element == 0 || descriptor.Width == 0) return CUDA_ERROR_INVALID_VALUE;
  if (descriptor.Depth != 0 && descriptor.Height == 0 &&
      !(descriptor.Flags & CUDA_ARRAY3D_LAYERED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!ExtentsAreValid(descriptor)) return CUDA_ERROR_INVALID_VALUE;
  array->descriptor = descriptor;
  array->pitch = descriptor.Width * element;
  array->rows = std::max<size_t>(descriptor.Height, 1);
  array->layers = std::max<size_t>(descriptor.Depth, 1);
  return CUDA_SUCCESS;
}

uint64_t BytesOf(const Array& array) { return array.slice() * array.layers; }

bool ProgramMaps(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return (shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0 &&
         !Broken(Rule::kSparseHasNoMemory);
}

// Gives back what is behind an array or mipmapped array that is no more.
CUresult ReleaseSparse(uint64_t address, const std::shared_ptr<Sparse>& sparse) {
  if (!sparse) return ReleaseDevice(address);
  DropSparse(sparse.get());
  return CUDA_SUCCESS;
}

CUresult Create(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (CUresult result = CheckCaptureSafe()) return result;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  auto array = std::make_unique<Array>();
  if (CUresult result = Shape(descriptor, array.get())) return result;
  array->ctx = ctx;
  std::lock_guard lock(D().mutex);
  if (ProgramMaps(descriptor)) {
    if (CUresult result = MakeSparse(ctx, {array.get()}, false, &array->sparse)) return result;
  } else if (CUresult result =
                 AllocateDevice(ctx, BytesOf(*array), Memory::Kind::kDevice, &array->address)) {
    return result;
  }
  *out = reinterpret_cast<CUarray>(array.get());
  A().arrays[array.get()] = std::move(array);
  return CUDA_SUCCESS;
}

CUDA_ARRAY3D_DESCRIPTOR Flat(size_t width, size_t height, CUarray_format format,
                             unsigned channels) {
  return {width, height, 0, format, channels, 0};
}

CUresult Requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, const std::shared_ptr<Sparse>& sparse) {
  if (!out || !sparse || !sparse->deferred) return CUDA_ERROR_INVALID_VALUE;
  *out = {};
  out->size = sparse->bytes;
  out->alignment = kTileBytes;
  return CUDA_SUCCESS;
}

CUresult Properties(CUDA_ARRAY_SPARSE_PROPERTIES* out, const std::shared_ptr<Sparse>& sparse,
                    bool mipmapped) {
  if (!out || !sparse || sparse->deferred) return CUDA_ERROR_INVALID_VALUE;
  *out = {};
  out->tileExtent.width = static_cast<unsigned>(sparse->tile[0]);
  out->tileExtent.height = static_cast<unsigned>(sparse->tile[1]);
  out->tileExtent.depth = static_cast<unsigned>(sparse->tile[2]);
  out->miptailSize = sparse->tail_bytes;
  if (mipmapped) {
    out->miptailFirstLevel = static_cast<unsigned>(sparse->tail_level);
  } else if (sparse->tail_bytes > 0) {
    out->flags = CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuArray3DCreate_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  if (!pAllocateArray) return CUDA_ERROR_INVALID_VALUE;
  return Create(pHandle, *pAllocateArray);
}

CUresult cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
  if (!pAllocateArray) return CUDA_ERROR_INVALID_VALUE;
  return Create(pHandle, Flat(pAllocateArray->Width, pAllocateArray->Height, pAllocateArray->Format,
                              pAllocateArray->NumChannels));
}

CUresult cuArrayCreate(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR_v1* pAllocateArray) {
  if (!pAllocateArray) return CUDA_ERROR_INVALID_VALUE;
  return Create(pHandle, Flat(pAllocateArray->Width, pAllocateArray->Height, pAllocateArray->Format,
                              pAllocateArray->NumChannels));
}

CUresult cuArray3DCreate(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1* pAllocateArray) {
  if (!pAllocateArray) return CUDA_ERROR_INVALID_VALUE;
  return Create(pHandle,
                {pAllocateArray->Width, pAllocateArray->Height, pAllocateArray->Depth,
                 pAllocateArray->Format, pAllocateArray->NumChannels, pAllocateArray->Flags});
}

CUresult cuArrayDestroy(CUarray hArray) {
  if (CUresult result = EnterCall()) return result;
  if (CUresult result = CheckCaptureSafe()) return result;
  Handle handle;
  {
    std::lock_guard lock(D().mutex);
    auto found = A().arrays.find(hArray);
    if (found == A().arrays.end()) return CUDA_ERROR_INVALID_HANDLE;
    handle = found->second->ctx->handle;
  }
  D().machine->WaitContext(handle);
  std::lock_guard lock(D().mutex);
  auto found = A().arrays.find(hArray);
  if (found == A().arrays.end()) return CUDA_ERROR_INVALID_HANDLE;
  const std::unique_ptr<Array> gone = std::move(found->second);
  A().arrays.erase(found);
  return ReleaseSparse(gone->address, gone->sparse);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  if (CUresult result = EnterCall()) return result;
  if (!pArrayDescriptor) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Array* array;
  if (CUresult result = FindArray(hArray, &array)) return result;
  *pArrayDescriptor = array->descriptor;
  return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  CUDA_ARRAY3D_DESCRIPTOR full;
  if (CUresult result = cuArray3DGetDescriptor_v2(&full, hArray)) return result;
  if (!pArrayDescriptor) return CUDA_ERROR_INVALID_VALUE;
  *pArrayDescriptor = {full.Width, full.Height, full.Format, full.NumChannels};
  return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements,
                                      CUarray array, CUdevice device) {
  if (CUresult result = EnterDevice(device)) return result;
  std::lock_guard lock(D().mutex);
  Array* found;
  if (CUresult result = FindArray(array, &found)) return result;
  return Requirements(memoryRequirements, found->owns_memory ? found->sparse : nullptr);
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* sparseProperties, CUarray array) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  Array* found;
  if (CUresult result = FindArray(array, &found)) return result;
  return Properties(sparseProperties, found->owns_memory ? found->sparse : nullptr, false);
}

namespace {

// The levels, one behind the other at offsets; no memory yet.
CUresult MakeLevels(Context* ctx, CUDA_ARRAY3D_DESCRIPTOR descriptor, unsigned levels,
                    Mipmap* mipmap) {
  mipmap->ctx = ctx;
  const size_t largest = std::max({descriptor.Width, descriptor.Height, descriptor.Depth});
  for (unsigned i = 0; i < std::max(levels, 1u) && (largest >> i) > 0; ++i) {
    auto level = std::make_unique<Array>();
    if (CUresult result = Shape(descriptor, level.get())) return result;
    level->ctx = ctx;
    level->owns_memory = false;
    level->address = mipmap->bytes;  // an offset until the memory is there
    mipmap->bytes += (BytesOf(*level) + 511) / 512 * 512;
    mipmap->levels.push_back(std::move(level));
    descriptor.Width = std::max<size_t>(descriptor.Width / 2, 1);
    if (descriptor.Height > 0) descriptor.Height = std::max<size_t>(descriptor.Height / 2, 1);
    if (descriptor.Depth > 0 && !(descriptor.Flags & CUDA_ARRAY3D_LAYERED)) {
      descriptor.Depth = std::max<size_t>(descriptor.Depth / 2, 1);
    }
  }
  return CUDA_SUCCESS;
}

CUmipmappedArray AddMipmap(std::unique_ptr<Mipmap> mipmap) {
  for (const auto& level : mipmap->levels) {
    if (!mipmap->sparse) level->address += mipmap->address;
    A().levels[level.get()] = level.get();
  }
  const void* const handle = mipmap.get();
  A().mipmaps[handle] = std::move(mipmap);
  return reinterpret_cast<CUmipmappedArray>(const_cast<void*>(handle));
}

}  // namespace

namespace prorata::simgpu::driver {

CUresult MapMipmap(Context* ctx, const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels,
                   uint64_t address, uint64_t room, std::shared_ptr<ExternalView> memory,
                   CUmipmappedArray* out) {
  auto mipmap = std::make_unique<Mipmap>();
  if (CUresult result = MakeLevels(ctx, shape, levels, mipmap.get())) return result;
  if (mipmap->levels.empty() || mipmap->bytes > room) return CUDA_ERROR_INVALID_VALUE;
  mipmap->address = address;
  mipmap->external = std::move(memory);
  *out = AddMipmap(std::move(mipmap));
  return CUDA_SUCCESS;
}

}  // namespace prorata::simgpu::driver

CUresult cuMipmappedArrayCreate(CUmipmappedArray* pHandle,
                                const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (CUresult result = CheckCaptureSafe()) return result;
  if (!pHandle || !pMipmappedArrayDesc) return CUDA_ERROR_INVALID_VALUE;
  auto mipmap = std::make_unique<Mipmap>();
  if (CUresult result = MakeLevels(ctx, *pMipmappedArrayDesc, numMipmapLevels, mipmap.get())) {
    return result;
  }
  std::lock_guard lock(D().mutex);
  if (ProgramMaps(*pMipmappedArrayDesc)) {
    std::vector<Array*> levels;
    for (const auto& level : mipmap->levels) levels.push_back(level.get());
    if (CUresult result = MakeSparse(ctx, levels, true, &mipmap->sparse)) return result;
  } else if (CUresult result =
                 AllocateDevice(ctx, mipmap->bytes, Memory::Kind::kDevice, &mipmap->address)) {
    return result;
  }
  *pHandle = AddMipmap(std::move(mipmap));
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  if (CUresult result = EnterCall()) return result;
  if (CUresult result = CheckCaptureSafe()) return result;
  Handle ctx;
  {
    std::lock_guard lock(D().mutex);
    auto found = A().mipmaps.find(handle);
    if (found == A().mipmaps.end()) return CUDA_ERROR_INVALID_HANDLE;
    ctx = found->second->ctx->handle;
  }
  D().machine->WaitContext(ctx);
  std::lock_guard lock(D().mutex);
  auto found = A().mipmaps.find(handle);
  if (found == A().mipmaps.end()) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& level : found->second->levels) A().levels.erase(level.get());
  const std::unique_ptr<Mipmap> gone = std::move(found->second);
  A().mipmaps.erase(found);
  if (gone->external) return CUDA_SUCCESS;
  return ReleaseSparse(gone->address, gone->sparse);
}

CUresult cuMipmappedArrayGetLevel(CUarray* pLevelArray, CUmipmappedArray handle,
                                  unsigned int level) {
  if (CUresult result = EnterCall()) return result;
  if (!pLevelArray) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  auto found = A().mipmaps.find(handle);
  if (found == A().mipmaps.end()) return CUDA_ERROR_INVALID_HANDLE;
  if (level >= found->second->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *pLevelArray = reinterpret_cast<CUarray>(found->second->levels[level].get());
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements,
                                               CUmipmappedArray mipmap, CUdevice device) {
  if (CUresult result = EnterDevice(device)) return result;
  std::lock_guard lock(D().mutex);
  auto found = A().mipmaps.find(mipmap);
  if (found == A().mipmaps.end()) return CUDA_ERROR_INVALID_HANDLE;
  return Requirements(memoryRequirements, found->second->sparse);
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* sparseProperties,
                                             CUmipmappedArray mipmap) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  auto found = A().mipmaps.find(mipmap);
  if (found == A().mipmaps.end()) return CUDA_ERROR_INVALID_HANDLE;
  return Properties(sparseProperties, found->second->sparse, true);
}
