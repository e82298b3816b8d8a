// Streams: making, asking, waiting.

#include <cstring>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/context/green.h"
#include "sim/cuda/faults.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/pool.h"
#include "sim/cuda/stream/operation.h"

namespace prorata::simgpu::driver {

CUresult FindStream(CUstream stream, bool per_thread, Context* current, StreamRef* out) {
  const auto value = reinterpret_cast<uintptr_t>(stream);
  constexpr uintptr_t kLegacy = 1;
  constexpr uintptr_t kPerThread = 2;
  const uint64_t thread = Broken(Rule::kPerThreadIsPerThread) ? 0 : Self().id;
  // Default streams are those of the green context that is current.
  Green* green = CurrentGreen();
  if (green && green->primary != current) green = nullptr;
  if (value == kLegacy || (value == 0 && !per_thread)) {
    *out = green ? green->legacy : current->legacy;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (value == kPerThread || value == 0) {
    StreamRef& own = green ? green->per_thread[thread] : current->per_thread[thread];
    if (!own) {
      const StreamKind kind =
          Broken(Rule::kPerThreadIsBlocking) ? StreamKind::kNonBlocking : StreamKind::kBlocking;
      if (CUresult result = NewStream(current, kind, 0, 0, &own, green)) return result;
      own->is_default = true;
      if (green) return *out = own, JoinGreen(*own);
    }
    *out = own;
    return CUDA_SUCCESS;
  }
  auto found = D().streams.find(stream);
  if (found == D().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = found->second;
  const bool ended = (*out)->green && !(*out)->green->view.alive;
  return ended ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult CreateStream(CUstream* out, unsigned flags, int priority) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!out || (flags & ~unsigned{CU_STREAM_NON_BLOCKING})) return CUDA_ERROR_INVALID_VALUE;
  const StreamKind kind =
      flags & CU_STREAM_NON_BLOCKING ? StreamKind::kNonBlocking : StreamKind::kBlocking;
  std::lock_guard lock(D().mutex);
  StreamRef stream;
  Green* const green = CurrentGreen();
  if (CUresult result = NewStream(ctx, kind, flags, priority, &stream, green)) return result;
  if (green) {
    if (CUresult result = JoinGreen(*stream)) return result;
  }
  *out = reinterpret_cast<CUstream>(stream.get());
  D().streams[stream.get()] = stream;
  return CUDA_SUCCESS;
}

CUresult Lookup(CUstream stream, bool per_thread, StreamRef* out) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  std::lock_guard lock(D().mutex);
  return FindStream(stream, per_thread, ctx, out);
}

CUresult Query(CUstream handle, bool per_thread) {
  StreamRef stream;
  if (CUresult result = Lookup(handle, per_thread, &stream)) return result;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = CheckNotCapturing(stream.get())) return result;
  }
  if (CUresult result = CheckCaptureSafe()) return result;
  if (Broken(Rule::kStreamQueryTellsPending)) return CUDA_SUCCESS;
  if (CUresult result = FromCode(D().machine->QueryStream(stream->handle))) return result;
  return ErrorOf(*stream->ctx);
}

CUresult Synchronize(CUstream handle, bool per_thread) {
  StreamRef stream;
  if (CUresult result = Lookup(handle, per_thread, &stream)) return result;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = CheckNotCapturing(stream.get())) return result;
  }
  if (CUresult result = CheckCaptureSafe()) return result;
  if (Broken(Rule::kStreamSynchronizeWaits)) return CUDA_SUCCESS;
  if (CUresult result = FromCode(D().machine->WaitStream(stream->handle))) return result;
  if (CUresult result = ErrorOf(*stream->ctx)) return result;
  AfterSynchronize(stream->ctx);
  return CUDA_SUCCESS;
}

CUresult Wait(CUstream handle, CUevent event_handle, unsigned flags, bool per_thread) {
  StreamRef stream;
  if (CUresult result = Lookup(handle, per_thread, &stream)) return result;
  if (flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) return CUDA_ERROR_INVALID_VALUE;
  EventRef event;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindEvent(event_handle, &event)) return result;
  }
  return WaitForEvent(stream, event, flags);
}

CUresult Host(CUstream handle, HostCall call, bool per_thread) {
  StreamRef stream;
  if (CUresult result = Lookup(handle, per_thread, &stream)) return result;
  if (!call.function && !call.callback) return CUDA_ERROR_INVALID_VALUE;
  call.stream = handle;
  if (Broken(Rule::kHostFunctionWaits)) return RunHostCall(call, CUDA_SUCCESS), CUDA_SUCCESS;
  return Enqueue(stream, call);
}

// The older callbacks cannot be part of a graph.
CUresult Callback(CUstream handle, CUstreamCallback callback, void* user, unsigned flags,
                  bool per_thread) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = Lookup(handle, per_thread, &stream)) return result;
  {
    std::lock_guard lock(D().mutex);
    const bool broken = Broken(Rule::kCallbackIsNotCaptured);
    const CUresult result = broken ? CUDA_SUCCESS : CheckNotCapturing(stream.get());
    if (result != CUDA_SUCCESS) return result;
  }
  return Host(handle, {.callback = callback, .user_data = user}, per_thread);
}

template <typename T, typename Get>
CUresult Read(CUstream handle, bool per_thread, T* out, Get get) {
  StreamRef stream;
  if (CUresult result = Lookup(handle, per_thread, &stream)) return result;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = get(*stream);
  return CUDA_SUCCESS;
}

unsigned FlagsOf(const Stream& stream) { return stream.flags; }
int PriorityOf(const Stream& stream) { return stream.priority; }
unsigned long long IdOf(const Stream& stream) { return stream.id; }
CUdevice DeviceOf(const Stream& stream) { return stream.ctx->device; }
CUcontext CtxOf(const Stream& stream) {
  return HandleOf(stream.green ? &stream.green->view : stream.ctx);
}
CUgreenCtx GreenOf(const Stream& stream) {
  return Broken(Rule::kStreamKnowsItsGreen) ? nullptr : HandleOf(stream.green);
}

// Of a stream of a green context: the primary context, and the green one.
CUresult GetBoth(CUstream handle, bool per_thread, CUcontext* ctx, CUgreenCtx* green) {
  StreamRef stream;
  if (CUresult result = Lookup(handle, per_thread, &stream)) return result;
  if (!ctx) return CUDA_ERROR_INVALID_VALUE;
  *ctx = HandleOf(stream->ctx);
  if (green) *green = GreenOf(*stream);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  return CreateStream(phStream, Flags, 0);
}
CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  return CreateStream(phStream, flags, priority);
}

// Work that was submitted still runs; the driver lets the stream go when it is done.
CUresult cuStreamDestroy_v2(CUstream hStream) {
  StreamRef stream;
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  auto found = D().streams.find(hStream);
  if (found == D().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  stream = found->second;
  LeaveCapture(stream.get());
  D().streams.erase(found);
  if (stream->green) {
    if (!stream->green->view.alive) return CUDA_SUCCESS;  // the machine's went with the context
    LeaveGreen(*stream);
  }
  if (Broken(Rule::kDestroyDoesNotWait)) D().machine->WaitStream(stream->handle);
  return FromCode(D().machine->DestroyStream(stream->handle));
}
CUresult cuStreamDestroy(CUstream hStream) { return cuStreamDestroy_v2(hStream); }

#define PRORATA_BOTH(name, params, call) \
  CUresult name params {                 \
    constexpr bool kPerThread = false;   \
    return call;                         \
  }                                      \
  CUresult name##_ptsz params {          \
    constexpr bool kPerThread = true;    \
    return call;                         \
  }

PRORATA_BOTH(cuStreamQuery, (CUstream hStream), Query(hStream, kPerThread))
PRORATA_BOTH(cuStreamSynchronize, (CUstream hStream), Synchronize(hStream, kPerThread))
PRORATA_BOTH(cuStreamWaitEvent, (CUstream hStream, CUevent hEvent, unsigned int Flags),
             Wait(hStream, hEvent, Flags, kPerThread))
PRORATA_BOTH(cuLaunchHostFunc, (CUstream hStream, CUhostFn fn, void* userData),
             Host(hStream, {.function = fn, .user_data = userData}, kPerThread))
PRORATA_BOTH(cuStreamAddCallback,
             (CUstream hStream, CUstreamCallback callback, void* userData, unsigned int flags),
             Callback(hStream, callback, userData, flags, kPerThread))
PRORATA_BOTH(cuStreamGetFlags, (CUstream hStream, unsigned int* flags),
             Read(hStream, kPerThread, flags, FlagsOf))
PRORATA_BOTH(cuStreamGetPriority, (CUstream hStream, int* priority),
             Read(hStream, kPerThread, priority, PriorityOf))
PRORATA_BOTH(cuStreamGetId, (CUstream hStream, unsigned long long* streamId),
             Read(hStream, kPerThread, streamId, IdOf))
PRORATA_BOTH(cuStreamGetDevice, (CUstream hStream, CUdevice* device),
             Read(hStream, kPerThread, device, DeviceOf))
PRORATA_BOTH(cuStreamGetCtx, (CUstream hStream, CUcontext* pctx),
             Read(hStream, kPerThread, pctx, CtxOf))
PRORATA_BOTH(cuStreamGetCtx_v2, (CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx),
             GetBoth(hStream, kPerThread, pCtx, pGreenCtx))

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx* phCtx) {
  return Read(hStream, false, phCtx, GreenOf);
}

namespace {

CUresult GetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue* value,
                      bool per_thread) {
  StreamRef stream;
  if (CUresult result = Lookup(handle, per_thread, &stream)) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::memset(value, 0, sizeof(*value));
  std::lock_guard lock(D().mutex);
  auto set = stream->attributes.find(attribute);
  if (set != stream->attributes.end()) {
    *value = set->second;
  } else if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
    value->priority = stream->priority;
  } else if (attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) {
    value->syncPolicy = CU_SYNC_POLICY_AUTO;
  } else if (attribute == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP) {
    value->memSyncDomainMap = {0, 1};
  }
  return CUDA_SUCCESS;
}

bool IsOfStreams(int attribute) {
  return attribute == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW ||
         attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY ||
         attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY ||
         attribute == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP ||
         attribute == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN ||
         attribute == CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING;
}

CUresult SetAttribute(CUstream handle, CUstreamAttrID attribute, const CUstreamAttrValue* value,
                      bool per_thread) {
  StreamRef stream;
  if (CUresult result = Lookup(handle, per_thread, &stream)) return result;
  if (!value || !IsOfStreams(attribute)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  stream->attributes[attribute] = *value;
  return CUDA_SUCCESS;
}

CUresult CopyAttributes(CUstream dst, CUstream src, bool per_thread) {
  StreamRef to;
  StreamRef from;
  if (CUresult result = Lookup(dst, per_thread, &to)) return result;
  if (CUresult result = Lookup(src, per_thread, &from)) return result;
  if (to->ctx != from->ctx) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  to->attributes = from->attributes;
  return CUDA_SUCCESS;
}

// All memory is reachable from everywhere here; only the arguments are checked.
CUresult Attach(CUstream handle, CUdeviceptr address, size_t length, unsigned flags,
                bool per_thread) {
  StreamRef stream;
  if (CUresult result = Lookup(handle, per_thread, &stream)) return result;
  std::lock_guard lock(D().mutex);
  // Not something that a graph can hold.
  if (CUresult result = CheckNotCapturing(stream.get())) return result;
  const Memory* memory = FindMemory(address);
  if (!memory || memory->kind != Memory::Kind::kManaged) return CUDA_ERROR_INVALID_VALUE;
  if (length != 0 && length != memory->bytes) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
      flags != CU_MEM_ATTACH_SINGLE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool singly = flags == CU_MEM_ATTACH_SINGLE;
  if (singly && stream->kind == StreamKind::kLegacy) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

}  // namespace

PRORATA_BOTH(cuStreamGetAttribute,
             (CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue* value),
             GetAttribute(hStream, attr, value, kPerThread))
PRORATA_BOTH(cuStreamSetAttribute,
             (CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue* value),
             SetAttribute(hStream, attr, value, kPerThread))
PRORATA_BOTH(cuStreamCopyAttributes, (CUstream dst, CUstream src),
             CopyAttributes(dst, src, kPerThread))
PRORATA_BOTH(cuStreamAttachMemAsync,
             (CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags),
             Attach(hStream, dptr, length, flags, kPerThread))

#undef PRORATA_BOTH
