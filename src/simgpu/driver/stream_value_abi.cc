// Words of memory written and waited for in stream order.

#include "generated/cuda_abi.h"
#include "simgpu/driver/operation.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult Check(const ValueCall& call, unsigned flags) {
  constexpr unsigned kWaitFlags = 3 | unsigned{CU_STREAM_WAIT_VALUE_FLUSH};
  if (call.wait ? flags & ~kWaitFlags
                : flags & ~unsigned{CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER}) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t bytes = call.wide ? 8 : 4;
  if (call.address % bytes != 0 || !DeviceRangeIsValid(call.address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult Value(CUstream handle, ValueCall call, unsigned flags, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  StreamRef stream;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindStream(handle, per_thread, ctx, &stream)) return result;
    if (CUresult result = Check(call, flags)) return result;
  }
  call.condition = flags & 3;
  return Enqueue(stream, call);
}

CUresult Batch(CUstream handle, unsigned count, const CUstreamBatchMemOpParams* params,
               bool per_thread) {
  if (CUresult result = EnterCall()) return result;
  if (count > 256 || (count > 0 && !params)) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    ValueCall call;
    unsigned flags = 0;
    switch (params[i].operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        call.wait = true;
        call.wide = params[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
        call.address = params[i].waitValue.address;
        call.value = call.wide ? params[i].waitValue.value64 : params[i].waitValue.value;
        flags = params[i].waitValue.flags;
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        call.wide = params[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
        call.address = params[i].writeValue.address;
        call.value = call.wide ? params[i].writeValue.value64 : params[i].writeValue.value;
        flags = params[i].writeValue.flags;
        break;
      case CU_STREAM_MEM_OP_BARRIER:
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        continue;  // every action of the executor is a barrier
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (CUresult result = Value(handle, call, flags, per_thread)) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

#define PRORATA_VALUE_ONE(name, is_wait, is_wide, type, thread)                               \
  CUresult name(CUstream stream, CUdeviceptr addr, type value, unsigned int flags) {          \
    return Value(stream, {.wait = is_wait, .wide = is_wide, .address = addr, .value = value}, \
                 flags, thread);                                                              \
  }
#define PRORATA_VALUE(name, is_wait, is_wide, type)            \
  PRORATA_VALUE_ONE(name, is_wait, is_wide, type, false)       \
  PRORATA_VALUE_ONE(name##_ptsz, is_wait, is_wide, type, true) \
  PRORATA_VALUE_ONE(name##_v2, is_wait, is_wide, type, false)  \
  PRORATA_VALUE_ONE(name##_v2_ptsz, is_wait, is_wide, type, true)

PRORATA_VALUE(cuStreamWaitValue32, true, false, cuuint32_t)
PRORATA_VALUE(cuStreamWaitValue64, true, true, cuuint64_t)
PRORATA_VALUE(cuStreamWriteValue32, false, false, cuuint32_t)
PRORATA_VALUE(cuStreamWriteValue64, false, true, cuuint64_t)

#undef PRORATA_VALUE
#undef PRORATA_VALUE_ONE

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count,
                            CUstreamBatchMemOpParams* paramArray, unsigned int) {
  return Batch(stream, count, paramArray, false);
}
CUresult cuStreamBatchMemOp_ptsz(CUstream stream, unsigned int count,
                                 CUstreamBatchMemOpParams* paramArray, unsigned int) {
  return Batch(stream, count, paramArray, true);
}
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                               CUstreamBatchMemOpParams* paramArray, unsigned int) {
  return Batch(stream, count, paramArray, false);
}
CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int count,
                                    CUstreamBatchMemOpParams* paramArray, unsigned int) {
  return Batch(stream, count, paramArray, true);
}
