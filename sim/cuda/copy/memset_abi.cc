// Fills. Like the driver's, they do not wait for the device, except over host and managed memory.

#include "generated/cuda_abi.h"
#include "sim/cuda/copy/peer.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/stream/operation.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult Fill(FillCall fill, CUstream stream, bool per_thread, bool async) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  StreamRef target;
  bool waits = false;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindStream(stream, per_thread, ctx, &target)) return result;
    if (fill.bytes() == 0) return CUDA_SUCCESS;
    if (fill.dst % fill.element_bytes != 0 && !Broken(Rule::kFillAlignment))
      return CUDA_ERROR_INVALID_VALUE;
    const uint64_t row = uint64_t{fill.width} * fill.element_bytes;
    if (fill.height > 1 && (fill.pitch < row || fill.pitch % fill.element_bytes != 0)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    fill.placeholder = async && target->capture && !FillIsValid(fill);
    if (!fill.placeholder) {
      if (!FillIsValid(fill)) return CUDA_ERROR_INVALID_VALUE;
      const Memory* memory = FindMemory(fill.dst);
      if (!Reaches(target->ctx, *memory, fill.dst)) return CUDA_ERROR_INVALID_VALUE;
      waits = !memory->on_device() || memory->kind == Memory::Kind::kManaged ||
              SynchronousMemops(*ctx, fill.dst);
    }
    if (Broken(Rule::kFillOfHostWaits)) waits = false;
    if (Broken(Rule::kFillOfDeviceDoesNotWait)) waits = true;
  }
  if (async) return Enqueue(target, fill);
  if (CUresult result = CheckCaptureSafe()) return result;
  return waits ? EnqueueAndWait(target, fill) : Enqueue(target, fill);
}

FillCall Row(CUdeviceptr dst, unsigned value, unsigned element_bytes, size_t count) {
  return {dst, 0, value, element_bytes, count, 1};
}

}  // namespace

#define PRORATA_MEMSET(bits, type)                                                                \
  CUresult cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t count) {                      \
    return Fill(Row(dst, value, bits / 8, count), nullptr, false, false);                         \
  }                                                                                               \
  CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr dst, type value, size_t count) {                 \
    return Fill(Row(dst, value, bits / 8, count), nullptr, true, false);                          \
  }                                                                                               \
  CUresult cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t count, CUstream stream) {   \
    return Fill(Row(dst, value, bits / 8, count), stream, false, true);                           \
  }                                                                                               \
  CUresult cuMemsetD##bits##Async_ptsz(CUdeviceptr dst, type value, size_t count,                 \
                                       CUstream stream) {                                         \
    return Fill(Row(dst, value, bits / 8, count), stream, true, true);                            \
  }                                                                                               \
  CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type value, size_t width,        \
                                  size_t height) {                                                \
    return Fill({dst, pitch, value, bits / 8, width, height}, nullptr, false, false);             \
  }                                                                                               \
  CUresult cuMemsetD2D##bits##_v2_ptds(CUdeviceptr dst, size_t pitch, type value, size_t width,   \
                                       size_t height) {                                           \
    return Fill({dst, pitch, value, bits / 8, width, height}, nullptr, true, false);              \
  }                                                                                               \
  CUresult cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type value, size_t width,      \
                                    size_t height, CUstream stream) {                             \
    return Fill({dst, pitch, value, bits / 8, width, height}, stream, false, true);               \
  }                                                                                               \
  CUresult cuMemsetD2D##bits##Async_ptsz(CUdeviceptr dst, size_t pitch, type value, size_t width, \
                                         size_t height, CUstream stream) {                        \
    return Fill({dst, pitch, value, bits / 8, width, height}, stream, true, true);                \
  }

PRORATA_MEMSET(8, unsigned char)
PRORATA_MEMSET(16, unsigned short)
PRORATA_MEMSET(32, unsigned int)

#undef PRORATA_MEMSET
