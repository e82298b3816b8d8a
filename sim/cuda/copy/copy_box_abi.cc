// Copies of rectangles and boxes, and to and from arrays.

#include "generated/cuda_abi.h"
#include "sim/cuda/copy/copy.h"
#include "sim/cuda/memory/memory.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult CopyBox(const CUDA_MEMCPY3D& box, CUstream stream, bool per_thread, Ending ending) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  CopyCall copy;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = MakeBoxCopy(box, &copy)) return result;
  }
  return CopyOnHost(copy, stream, per_thread, ending);
}

template <typename Copy>
CUresult BoxFrom(const Copy* copy, CUstream stream, bool per_thread, Ending ending) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  return CopyBox(BoxOf(*copy), stream, per_thread, ending);
}

CUresult BoxFrom(const CUDA_MEMCPY3D* copy, CUstream stream, bool per_thread, Ending ending) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  return CopyBox(*copy, stream, per_thread, ending);
}

}  // namespace

#define PRORATA_BOX(name, type)                                                                  \
  CUresult name(const type* pCopy) { return BoxFrom(pCopy, nullptr, false, Ending::kBlocking); } \
  CUresult name##_ptds(const type* pCopy) {                                                      \
    return BoxFrom(pCopy, nullptr, true, Ending::kBlocking);                                     \
  }
#define PRORATA_BOX_ASYNC(name, type)                         \
  CUresult name(const type* pCopy, CUstream hStream) {        \
    return BoxFrom(pCopy, hStream, false, Ending::kAsync);    \
  }                                                           \
  CUresult name##_ptsz(const type* pCopy, CUstream hStream) { \
    return BoxFrom(pCopy, hStream, true, Ending::kAsync);     \
  }

PRORATA_BOX(cuMemcpy2D_v2, CUDA_MEMCPY2D)
PRORATA_BOX(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D)
PRORATA_BOX(cuMemcpy3D_v2, CUDA_MEMCPY3D)
PRORATA_BOX_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D)
PRORATA_BOX_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D)

#undef PRORATA_BOX
#undef PRORATA_BOX_ASYNC

namespace {

// One row between an array and something else.
struct RowEnd {
  CUmemorytype type;
  CUarray array;
  uint64_t address;
  size_t offset;
};

RowEnd InArray(CUarray array, size_t offset) { return {CU_MEMORYTYPE_ARRAY, array, 0, offset}; }
RowEnd DeviceRow(CUdeviceptr address) { return {CU_MEMORYTYPE_DEVICE, nullptr, address, 0}; }
RowEnd OnHost(const void* address) { return {CU_MEMORYTYPE_HOST, nullptr, AddressOf(address), 0}; }

CUresult Row(const RowEnd& dst, const RowEnd& src, size_t bytes, CUstream stream, bool per_thread,
             Ending ending) {
  CUDA_MEMCPY3D box = RowBox(bytes);
  box.dstMemoryType = dst.type;
  box.dstArray = dst.array;
  box.dstHost = reinterpret_cast<void*>(dst.address);
  box.dstDevice = dst.address;
  box.dstXInBytes = dst.offset;
  box.srcMemoryType = src.type;
  box.srcArray = src.array;
  box.srcHost = reinterpret_cast<const void*>(src.address);
  box.srcDevice = src.address;
  box.srcXInBytes = src.offset;
  return CopyBox(box, stream, per_thread, ending);
}

}  // namespace

#define PRORATA_ROW(name, params, dst, src)                                                    \
  CUresult name params { return Row(dst, src, ByteCount, nullptr, false, Ending::kBlocking); } \
  CUresult name##_ptds params { return Row(dst, src, ByteCount, nullptr, true, Ending::kBlocking); }
#define PRORATA_ROW_ASYNC(name, params, dst, src)                                           \
  CUresult name params { return Row(dst, src, ByteCount, hStream, false, Ending::kAsync); } \
  CUresult name##_ptsz params { return Row(dst, src, ByteCount, hStream, true, Ending::kAsync); }

PRORATA_ROW(cuMemcpyAtoA_v2,
            (CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
             size_t ByteCount),
            InArray(dstArray, dstOffset), InArray(srcArray, srcOffset))
PRORATA_ROW(cuMemcpyAtoD_v2,
            (CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount),
            DeviceRow(dstDevice), InArray(srcArray, srcOffset))
PRORATA_ROW(cuMemcpyDtoA_v2,
            (CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount),
            InArray(dstArray, dstOffset), DeviceRow(srcDevice))
PRORATA_ROW(cuMemcpyAtoH_v2, (void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount),
            OnHost(dstHost), InArray(srcArray, srcOffset))
PRORATA_ROW(cuMemcpyHtoA_v2,
            (CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount),
            InArray(dstArray, dstOffset), OnHost(srcHost))
PRORATA_ROW_ASYNC(cuMemcpyAtoHAsync_v2,
                  (void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                   CUstream hStream),
                  OnHost(dstHost), InArray(srcArray, srcOffset))
PRORATA_ROW_ASYNC(cuMemcpyHtoAAsync_v2,
                  (CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount,
                   CUstream hStream),
                  InArray(dstArray, dstOffset), OnHost(srcHost))

#undef PRORATA_ROW
#undef PRORATA_ROW_ASYNC
