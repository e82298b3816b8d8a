// Copies of plain bytes.

#include "generated/cuda_abi.h"
#include "sim/cuda/copy/copy.h"
#include "sim/cuda/memory/memory.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult CopyBytes(uint64_t dst, Side dst_side, uint64_t src, Side src_side, size_t bytes,
                   CUstream stream, bool per_thread, Ending ending) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  CopyCall copy;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = MakeCopy(dst, dst_side, src, src_side, bytes, &copy)) return result;
  }
  return CopyOnHost(copy, stream, per_thread, ending);
}

}  // namespace

// Each copy exists for the legacy default stream and, suffixed, for the thread's own.
#define PRORATA_BLOCKING(name, suffix, params, dst, dst_side, src, src_side)                       \
  CUresult name params {                                                                           \
    return CopyBytes(AddressOf(dst), dst_side, AddressOf(src), src_side, ByteCount, nullptr,       \
                     false, Ending::kBlocking);                                                    \
  }                                                                                                \
  CUresult name##suffix params {                                                                   \
    return CopyBytes(AddressOf(dst), dst_side, AddressOf(src), src_side, ByteCount, nullptr, true, \
                     Ending::kBlocking);                                                           \
  }
#define PRORATA_ASYNC(name, suffix, params, dst, dst_side, src, src_side)                          \
  CUresult name params {                                                                           \
    return CopyBytes(AddressOf(dst), dst_side, AddressOf(src), src_side, ByteCount, hStream,       \
                     false, Ending::kAsync);                                                       \
  }                                                                                                \
  CUresult name##suffix params {                                                                   \
    return CopyBytes(AddressOf(dst), dst_side, AddressOf(src), src_side, ByteCount, hStream, true, \
                     Ending::kAsync);                                                              \
  }

PRORATA_BLOCKING(cuMemcpy, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), dst,
                 Side::kAny, src, Side::kAny)
PRORATA_BLOCKING(cuMemcpyHtoD_v2, _ptds,
                 (CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount), dstDevice,
                 Side::kDevice, srcHost, Side::kHost)
PRORATA_BLOCKING(cuMemcpyDtoH_v2, _ptds, (void* dstHost, CUdeviceptr srcDevice, size_t ByteCount),
                 dstHost, Side::kHost, srcDevice, Side::kDevice)
PRORATA_BLOCKING(cuMemcpyDtoD_v2, _ptds,
                 (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount), dstDevice,
                 Side::kDevice, srcDevice, Side::kDevice)
PRORATA_ASYNC(cuMemcpyAsync, _ptsz,
              (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream), dst,
              Side::kAny, src, Side::kAny)
PRORATA_ASYNC(cuMemcpyHtoDAsync_v2, _ptsz,
              (CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount, CUstream hStream),
              dstDevice, Side::kDevice, srcHost, Side::kHost)
PRORATA_ASYNC(cuMemcpyDtoHAsync_v2, _ptsz,
              (void* dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream), dstHost,
              Side::kHost, srcDevice, Side::kDevice)
PRORATA_ASYNC(cuMemcpyDtoDAsync_v2, _ptsz,
              (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
              dstDevice, Side::kDevice, srcDevice, Side::kDevice)

#undef PRORATA_BLOCKING
#undef PRORATA_ASYNC

namespace {

CUresult Batch(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, size_t* failed,
               CUstream stream, bool per_thread) {
  if (count > 0 && (!dsts || !srcs || !sizes)) return CUDA_ERROR_INVALID_VALUE;
  if (!stream || stream == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    CUresult result = CopyBytes(dsts[i], Side::kAny, srcs[i], Side::kAny, sizes[i], stream,
                                per_thread, Ending::kAsync);
    if (result == CUDA_SUCCESS) continue;
    if (failed) *failed = i;
    return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                            CUmemcpyAttributes*, size_t*, size_t, size_t* failIdx,
                            CUstream hStream) {
  return Batch(dsts, srcs, sizes, count, failIdx, hStream, false);
}
CUresult cuMemcpyBatchAsync_ptsz(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                                 CUmemcpyAttributes*, size_t*, size_t, size_t* failIdx,
                                 CUstream hStream) {
  return Batch(dsts, srcs, sizes, count, failIdx, hStream, true);
}
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                               CUmemcpyAttributes*, size_t*, size_t, CUstream hStream) {
  return Batch(dsts, srcs, sizes, count, nullptr, hStream, false);
}
CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes,
                                    size_t count, CUmemcpyAttributes*, size_t*, size_t,
                                    CUstream hStream) {
  return Batch(dsts, srcs, sizes, count, nullptr, hStream, true);
}

// The first ABI, with 32-bit addresses and counts.
CUresult cuMemcpyHtoD(CUdeviceptr_v1 dst, const void* src, unsigned int bytes) {
  return cuMemcpyHtoD_v2(dst, src, bytes);
}
CUresult cuMemcpyDtoH(void* dst, CUdeviceptr_v1 src, unsigned int bytes) {
  return cuMemcpyDtoH_v2(dst, src, bytes);
}
CUresult cuMemcpyDtoD(CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int bytes) {
  return cuMemcpyDtoD_v2(dst, src, bytes);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr_v1 dst, const void* src, unsigned int bytes,
                           CUstream stream) {
  return cuMemcpyHtoDAsync_v2(dst, src, bytes, stream);
}
CUresult cuMemcpyDtoHAsync(void* dst, CUdeviceptr_v1 src, unsigned int bytes, CUstream stream) {
  return cuMemcpyDtoHAsync_v2(dst, src, bytes, stream);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int bytes,
                           CUstream stream) {
  return cuMemcpyDtoDAsync_v2(dst, src, bytes, stream);
}
