// The null driver's contexts, streams, events and graphs: handles that are given out again once
// they were destroyed, as a real driver's are, the youngest first. So whoever keeps one for too
// long soon has another's.
//
//   NULL_STRICT=1                  who uses an event after it or its context was destroyed ends the
//                                  process, as a real driver might, with a line that says so
//   NULL_PENDING=N                 an event is done at the (N+1)th look at it since it was recorded
//   NULL_LOADS_MS=N                loading it takes so long ...
//   NULL_LOADING_FD=N              ... and once its constructor runs a byte is written there
//   NULL_RELEASED_AFTER_LOOKS=N    after the first N looks at an active context another thread
//                                  releases it, so they saw what was no longer so in the next call

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "generated/cuda_abi.h"

namespace {

uint32_t Setting(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? static_cast<uint32_t>(std::atoi(text)) : 0;
}

struct Object {
  std::atomic<uint32_t> life{0};  // odd while it is there
  std::atomic<uint32_t> capturing{0};
  std::atomic<uint32_t> looks{0};
  Object* context = nullptr;  // whose it is, and in which life of that
  uint32_t context_life = 0;
  Object* next = nullptr;  // of those that are free
  Object* made_before = nullptr;
};

// The driver is seen by no sanitizer, so that its lock orders nothing that the program does not.
class Pool {
 public:
  Object* Make(Object* context) {
    Object* made;
    Lock();
    if (free_ != nullptr) {
      made = free_;
      free_ = made->next;
    } else {
      made = new Object;
      made->made_before = last_;
      last_ = made;
    }
    made->context = context;
    made->context_life = context != nullptr ? context->life.load() : 0;
    made->capturing = made->looks = 0;
    made->life.fetch_add(1);
    Unlock();
    return made;
  }
  void Drop(Object* object) {
    Lock();
    DropLocked(object);
    Unlock();
  }
  // All of a context that is about to go.
  void DropOf(const Object* context) {
    const uint32_t life = context->life.load();
    Lock();
    for (Object* at = last_; at != nullptr; at = at->made_before) {
      const bool there = at->life.load() % 2 != 0;
      if (there && at->context == context && at->context_life == life) DropLocked(at);
    }
    Unlock();
  }
  // For the child after a fork: whoever held its lock does not exist here.
  void Forget() { Unlock(); }

 private:
  void DropLocked(Object* object) {
    object->life.fetch_add(1);
    object->next = free_;
    free_ = object;
  }
  void Lock() {
    while (held_.test_and_set(std::memory_order_acquire)) __builtin_ia32_pause();
  }
  void Unlock() { held_.clear(std::memory_order_release); }

  std::atomic_flag held_;
  Object *free_ = nullptr, *last_ = nullptr;
};

Pool g_contexts, g_streams, g_events, g_graphs;
Object g_primary;
std::atomic<int> g_retained;

constexpr uint32_t kDepth = 16;
thread_local CUcontext t_stack[kDepth];
thread_local uint32_t t_depth;

CUcontext Current() { return t_depth != 0 ? t_stack[t_depth - 1] : nullptr; }

template <typename Handle>
Object* ObjectOf(Handle handle) {
  return reinterpret_cast<Object*>(handle);
}
template <typename Handle>
void Give(Handle* handle, Object* object) {
  *handle = reinterpret_cast<Handle>(object);
}

bool IsDefault(CUstream stream) { return reinterpret_cast<uint64_t>(stream) <= 2; }

void Check(CUevent event, const char* what) {
  static const bool strict = Setting("NULL_STRICT") != 0;
  if (!strict) return;
  const Object* object = ObjectOf(event);
  if (object->life.load() % 2 != 0 &&
      (object->context == nullptr || object->context->life.load() == object->context_life)) {
    return;
  }
  char line[128] = "null driver: an event that was destroyed is ";
  std::strcat(line, what);
  std::strcat(line, "\n");
  [[maybe_unused]] const ssize_t written = write(2, line, std::strlen(line));
  std::abort();
}

CUresult MakeContext(CUcontext* context) {
  Give(context, g_contexts.Make(nullptr));
  return cuCtxPushCurrent_v2(*context);
}

__attribute__((constructor)) void Loaded() {
  pthread_atfork(nullptr, nullptr, [] {
    for (Pool* pool : {&g_contexts, &g_streams, &g_events, &g_graphs}) pool->Forget();
  });
  const auto loading_fd = static_cast<int>(Setting("NULL_LOADING_FD"));
  if (loading_fd > 0 && write(loading_fd, "", 1) != 1) std::abort();
  usleep(Setting("NULL_LOADS_MS") * 1000);
}

}  // namespace

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned int* flags, int* active) {
  static std::atomic<int> looks{static_cast<int>(Setting("NULL_RELEASED_AFTER_LOOKS"))};
  *flags = 0;
  *active = looks.fetch_sub(1) > 0 || g_retained.load(std::memory_order_relaxed) > 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  if (g_retained.fetch_add(1) == 0) g_primary.life.fetch_add(1);
  Give(context, &g_primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  if (g_retained.fetch_sub(1) == 1) g_primary.life.fetch_add(1);
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned int, CUdevice) { return MakeContext(context); }

CUresult cuCtxDestroy_v2(CUcontext context) {
  CUcontext popped;
  if (Current() == context) cuCtxPopCurrent_v2(&popped);
  g_streams.DropOf(ObjectOf(context));
  g_events.DropOf(ObjectOf(context));
  g_contexts.Drop(ObjectOf(context));
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (t_depth == 0) return cuCtxPushCurrent_v2(context);
  t_stack[t_depth - 1] = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (t_depth == kDepth) return CUDA_ERROR_INVALID_CONTEXT;
  t_stack[t_depth++] = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (t_depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  *context = t_stack[--t_depth];
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = Current();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned int) {
  Give(stream, g_streams.Make(ObjectOf(Current())));
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  if (!IsDefault(stream)) g_streams.Drop(ObjectOf(stream));
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  *context = IsDefault(stream) ? Current() : reinterpret_cast<CUcontext>(ObjectOf(stream)->context);
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const bool captured = !IsDefault(stream) && ObjectOf(stream)->capturing.load() != 0;
  *status = captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus* status) {
  return cuStreamIsCapturing(stream, status);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
  if (IsDefault(stream) || ObjectOf(stream)->capturing.exchange(1) != 0) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  if (IsDefault(stream) || ObjectOf(stream)->capturing.exchange(0) == 0) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  Give(graph, g_graphs.Make(nullptr));
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  g_graphs.Drop(ObjectOf(graph));
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph, CUgraphNode*, size_t* count) {
  *count = 0;
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph, unsigned long long) {
  Give(exec, g_graphs.Make(nullptr));
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  g_graphs.Drop(ObjectOf(exec));
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned int) {
  Give(event, g_events.Make(ObjectOf(Current())));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  Check(event, "destroyed");
  g_events.Drop(ObjectOf(event));
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream) {
  Check(event, "recorded");
  ObjectOf(event)->looks.store(0, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) { return cuEventRecord(event, stream); }

CUresult cuEventQuery(CUevent event) {
  static const uint32_t looks = Setting("NULL_PENDING");
  Check(event, "queried");
  const uint32_t before = ObjectOf(event)->looks.fetch_add(1, std::memory_order_relaxed);
  return before < looks ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
