// Words of memory written and waited for in stream order.

#include <algorithm>
#include <utility>

#include "generated/cuda_abi.h"
#include "sim/cuda/copy/peer.h"
#include "sim/cuda/stream/operation.h"
#include "sim/cuda/stream/stream_value.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// D().mutex held.
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
  if (FindMemory(call.address)->kind == Memory::Kind::kManaged) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult Batch(CUstream handle, unsigned count, const CUstreamBatchMemOpParams* params,
               unsigned flags, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  BatchCall batch;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindStream(handle, per_thread, ctx, &stream)) return result;
    if (CUresult result = MakeBatch(params, count, &batch)) return result;
    for (const ValueCall& call : batch.calls) {
      if (!Reaches(stream->ctx, *FindMemory(call.address), call.address)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
  }
  if (Broken(Rule::kBatchInOrder)) std::reverse(batch.calls.begin(), batch.calls.end());
  if (Broken(Rule::kWriteValueInOrder)) {
    std::erase_if(batch.calls, [](const ValueCall& call) { return !call.wait && RunValue(call); });
  }
  if (batch.calls.empty()) return CUDA_SUCCESS;
  return Enqueue(stream, std::move(batch));
}

CUresult Value(CUstream handle, ValueCall call, unsigned flags, bool per_thread) {
  CUstreamBatchMemOpParams params{};
  if (call.wait) {
    params.waitValue.operation =
        call.wide ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32;
    params.waitValue.address = call.address;
    params.waitValue.value64 = call.value;
    params.waitValue.flags = flags;
  } else {
    params.writeValue.operation =
        call.wide ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
    params.writeValue.address = call.address;
    params.writeValue.value64 = call.value;
    params.writeValue.flags = flags;
  }
  return Batch(handle, 1, &params, 0, per_thread);
}

}  // namespace

CUresult prorata::simgpu::driver::MakeBatch(const CUstreamBatchMemOpParams* params, unsigned count,
                                            BatchCall* out) {
  if (count >= 256 || (count > 0 && !params)) return CUDA_ERROR_INVALID_VALUE;
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
    if (CUresult result = Check(call, flags)) return result;
    call.condition = flags & 3;
    out->calls.push_back(call);
  }
  if (count > 0) out->params.assign(params, params + count);
  return CUDA_SUCCESS;
}

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
                            CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  return Batch(stream, count, paramArray, flags, false);
}
CUresult cuStreamBatchMemOp_ptsz(CUstream stream, unsigned int count,
                                 CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  return Batch(stream, count, paramArray, flags, true);
}
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                               CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  return Batch(stream, count, paramArray, flags, false);
}
CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int count,
                                    CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  return Batch(stream, count, paramArray, flags, true);
}
