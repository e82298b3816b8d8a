// Batches: 3D copies, and prefetching and discarding of managed memory.

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/copy/copy.h"
#include "sim/cuda/memory/array.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// One side of a box copy, in the fields of the older descriptor. Extents and row lengths are in
// elements where an array takes part, in bytes otherwise.
CUresult FillSide(const CUmemcpy3DOperand& operand, unsigned element, bool source,
                  CUDA_MEMCPY3D* box) {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  CUdeviceptr address = 0;
  CUarray array = nullptr;
  size_t pitch = 0;
  size_t height = 0;
  CUoffset3D offset{};
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    type = CU_MEMORYTYPE_ARRAY;
    array = operand.op.array.array;
    offset = operand.op.array.offset;
  } else if (operand.type == CU_MEMCPY_OPERAND_TYPE_POINTER) {
    address = operand.op.ptr.ptr;
    pitch = operand.op.ptr.rowLength * element;
    height = operand.op.ptr.layerHeight;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (source) {
    box->srcMemoryType = type;
    box->srcDevice = address;
    box->srcArray = array;
    box->srcPitch = pitch;
    box->srcHeight = height;
    box->srcXInBytes = offset.x * element;
    box->srcY = offset.y;
    box->srcZ = offset.z;
  } else {
    box->dstMemoryType = type;
    box->dstDevice = address;
    box->dstArray = array;
    box->dstPitch = pitch;
    box->dstHeight = height;
    box->dstXInBytes = offset.x * element;
    box->dstY = offset.y;
    box->dstZ = offset.z;
  }
  return CUDA_SUCCESS;
}

unsigned ElementOf(const CUmemcpy3DOperand& operand) {
  Array* array;
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_ARRAY ||
      FindArray(operand.op.array.array, &array) != CUDA_SUCCESS) {
    return 0;
  }
  return ElementBytes(array->descriptor.Format, array->descriptor.NumChannels);
}

CUresult MakeOne(const CUDA_MEMCPY3D_BATCH_OP& op, CopyCall* copy) {
  std::lock_guard lock(D().mutex);
  unsigned element = ElementOf(op.src);
  if (element == 0) element = ElementOf(op.dst);
  if (element == 0) element = 1;
  CUDA_MEMCPY3D box{};
  if (CUresult result = FillSide(op.src, element, true, &box)) return result;
  if (CUresult result = FillSide(op.dst, element, false, &box)) return result;
  box.WidthInBytes = op.extent.width * element;
  box.Height = op.extent.height;
  box.Depth = op.extent.depth;
  if (box.srcPitch == 0 && box.srcMemoryType != CU_MEMORYTYPE_ARRAY)
    box.srcPitch = box.WidthInBytes;
  if (box.dstPitch == 0 && box.dstMemoryType != CU_MEMORYTYPE_ARRAY)
    box.dstPitch = box.WidthInBytes;
  if (box.srcHeight == 0) box.srcHeight = box.Height;
  if (box.dstHeight == 0) box.dstHeight = box.Height;
  return MakeBoxCopy(box, copy);
}

// All are checked before the first is begun.
CUresult Batch(size_t count, const CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed, cuuint64_t flags,
               CUstream stream, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (failed) *failed = SIZE_MAX;  // nothing in particular
  // The legacy stream cannot take batches (cuMemcpyBatchAsync).
  const bool legacy = stream == nullptr ? !per_thread : stream == CU_STREAM_LEGACY;
  if (count == 0 || !ops || flags != 0 || legacy) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CopyCall> copies(count);
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = MakeOne(ops[i], &copies[i]);
    if (result == CUDA_SUCCESS) continue;
    if (failed) *failed = i;
    return result;
  }
  for (const CopyCall& copy : copies) {
    if (CUresult result = CopyOnHost(copy, stream, per_thread, Ending::kAsync)) return result;
  }
  return CUDA_SUCCESS;
}

// Managed memory is always where it is needed, and what is discarded stays as it was: only the
// arguments are checked, and the stream is not held up.
CUresult Ranges(const CUdeviceptr* addresses, const size_t* sizes, size_t count, cuuint64_t flags,
                CUstream handle, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!addresses || !sizes || count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  StreamRef stream;
  if (CUresult result = FindStream(handle, per_thread, ctx, &stream)) return result;
  for (size_t i = 0; i < count; ++i) {
    const Memory* memory = FindMemory(addresses[i]);
    if (!memory || memory->kind != Memory::Kind::kManaged || sizes[i] == 0 ||
        !DeviceRangeIsValid(addresses[i], sizes[i])) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult Prefetch(const CUdeviceptr* addresses, const size_t* sizes, size_t count,
                  const CUmemLocation* places, const size_t* indices, size_t place_count,
                  cuuint64_t flags, CUstream stream, bool per_thread) {
  if (!places || !indices || place_count == 0 || place_count > count || indices[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 1; i < place_count; ++i) {
    if (indices[i] <= indices[i - 1] || indices[i] >= count) return CUDA_ERROR_INVALID_VALUE;
  }
  return Ranges(addresses, sizes, count, flags, stream, per_thread);
}

}  // namespace

#define PRORATA_BOTH(name, params, call) \
  CUresult name params {                 \
    constexpr bool kPerThread = false;   \
    return call;                         \
  }                                      \
  CUresult name##_ptsz params {          \
    constexpr bool kPerThread = true;    \
    return call;                         \
  }

PRORATA_BOTH(cuMemcpy3DBatchAsync,
             (size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, size_t* failIdx,
              unsigned long long flags, CUstream hStream),
             Batch(numOps, opList, failIdx, flags, hStream, kPerThread))
PRORATA_BOTH(cuMemcpy3DBatchAsync_v2,
             (size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, unsigned long long flags,
              CUstream hStream),
             Batch(numOps, opList, nullptr, flags, hStream, kPerThread))
PRORATA_BOTH(cuMemDiscardBatchAsync,
             (CUdeviceptr * dptrs, size_t* sizes, size_t count, unsigned long long flags,
              CUstream hStream),
             Ranges(dptrs, sizes, count, flags, hStream, kPerThread))
PRORATA_BOTH(cuMemPrefetchBatchAsync,
             (CUdeviceptr * dptrs, size_t* sizes, size_t count, CUmemLocation* prefetchLocs,
              size_t* prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,
              CUstream hStream),
             Prefetch(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags,
                      hStream, kPerThread))
PRORATA_BOTH(cuMemDiscardAndPrefetchBatchAsync,
             (CUdeviceptr * dptrs, size_t* sizes, size_t count, CUmemLocation* prefetchLocs,
              size_t* prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,
              CUstream hStream),
             Prefetch(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags,
                      hStream, kPerThread))

#undef PRORATA_BOTH
