// Green contexts (green.h): resources, making and ending them, their streams and events.

#include <algorithm>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/green.h"
#include "sim/cuda/context/sm_resource.h"
#include "sim/cuda/from_c.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/stream/operation.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// What cuDevResourceGenerateDesc makes. The API has no call that ends one.
struct Descriptor {
  int device = 0;
  SmSet sms;
};
std::map<const void*, std::unique_ptr<Descriptor>>& Descriptors() {  // under D().mutex
  static auto* const all = new std::map<const void*, std::unique_ptr<Descriptor>>;
  return *all;
}

SmGrain GrainFor(int device, unsigned flags = 0) {
  const bool finer = flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;
  return GrainOf(D().config(device).compute_major, finer);
}

// All SMs of the device, or those of the green context.
CUresult GetResource(int device, const Green* green, CUdevResource* out, CUdevResourceType type) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  const uint32_t count = D().config(device).sm_count;
  if (count > SmSet::kMax) return CUDA_ERROR_NOT_SUPPORTED;
  SmResource resource;
  resource.device = device;
  resource.sms = green && !Broken(Rule::kGreenHasItsSms) ? green->sms : SmSet::Range(0, count);
  resource.coscheduled = GrainFor(device).step;
  *out = Seal(resource, GrainFor(device));
  return CUDA_SUCCESS;
}

}  // namespace

PRORATA_ENUMS_FROM_C CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource,
                                                     CUdevResourceType type) {
  if (CUresult result = EnterDevice(device)) return result;
  return GetResource(device, nullptr, resource, type);
}

PRORATA_ENUMS_FROM_C CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource* resource,
                                                  CUdevResourceType type) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  Context* ctx;
  if (CUresult result = NamedContext(hCtx, &ctx)) return result;
  return GetResource(ctx->device, ctx->green, resource, type);
}

PRORATA_ENUMS_FROM_C CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource* resource,
                                                       CUdevResourceType type) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  Green* green;
  if (CUresult result = LiveGreen(hCtx, &green)) return result;
  return GetResource(green->primary->device, green, resource, type);
}

PRORATA_ENUMS_FROM_C CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* nbGroups,
                                                          const CUdevResource* input,
                                                          CUdevResource* remaining,
                                                          unsigned useFlags, unsigned minCount) {
  if (CUresult error = EnterCall()) return error;
  constexpr unsigned kFlags = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING |
                              CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
  if (!nbGroups || !input || (useFlags & ~kFlags)) return CUDA_ERROR_INVALID_VALUE;
  if (result && *nbGroups == 0) return CUDA_ERROR_INVALID_VALUE;
  SmResource whole;
  if (CUresult error = Unseal(*input, &whole)) return error;
  if (whole.origin != SmResource::Origin::kWhole && !Broken(Rule::kSplitsAreNotSplit)) {
    return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  }
  SmGrain grain = GrainFor(whole.device, useFlags);
  if (Broken(Rule::kSplitIsAligned)) grain = {1, 1};
  SmSplit split;
  const unsigned most = result ? *nbGroups : SmSet::kMax;
  if (CUresult error = SplitSms(whole.sms, most, minCount, grain, &split)) return error;
  *nbGroups = static_cast<unsigned>(split.groups.size());
  if (!result) return CUDA_SUCCESS;
  SmResource part = whole;
  {
    std::lock_guard lock(D().mutex);
    part.split = D().next_id++;
  }
  part.origin = SmResource::Origin::kGroup;
  part.coscheduled = grain.step;
  for (size_t i = 0; i < split.groups.size(); ++i) {
    part.sms = split.groups[Broken(Rule::kSplitsAreApart) ? 0 : i];
    result[i] = Seal(part, grain);
  }
  if (remaining) {
    part.origin = SmResource::Origin::kRemainder;
    part.sms = split.rest;
    *remaining = Seal(part, grain);
  }
  return CUDA_SUCCESS;
}

PRORATA_ENUMS_FROM_C CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* phDesc,
                                                        CUdevResource* resources,
                                                        unsigned nbResources) {
  if (CUresult result = EnterCall()) return result;
  if (!phDesc || !resources || nbResources == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<SmResource> all(nbResources);
  for (unsigned i = 0; i < nbResources; ++i) {
    if (CUresult result = Unseal(resources[i], &all[i])) return result;
  }
  auto made = std::make_unique<Descriptor>();
  made->device = all.front().device;
  const CUresult joined = JoinSms(all, &made->sms);
  if (joined != CUDA_SUCCESS && !Broken(Rule::kDescIsOfOneSplit)) return joined;
  std::lock_guard lock(D().mutex);
  *phDesc = reinterpret_cast<CUdevResourceDesc>(made.get());
  Descriptors()[made.get()] = std::move(made);
  return CUDA_SUCCESS;
}

namespace {

CUresult MakeStreams(Green* green) {
  constexpr unsigned kFree = CU_STREAM_NON_BLOCKING;
  Context* ctx = green->primary;
  if (CUresult result = NewStream(ctx, StreamKind::kLegacy, 0, 0, &green->legacy, green)) {
    return result;
  }
  green->legacy->is_default = true;
  for (StreamRef* own : {&green->gate, &green->collector}) {
    if (CUresult result = NewStream(ctx, StreamKind::kNonBlocking, kFree, 0, own, green)) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

// Streams that the program made stay known until it destroys them, though nothing else works on
// them.
void EndStreams(Green* green) {
  Machine& machine = *D().machine;
  for (const StreamRef& stream : StreamsOf(*green)) {
    LeaveCapture(stream.get());
    machine.DestroyStream(stream->handle);
  }
  for (const StreamRef& own : {green->gate, green->collector}) {
    if (own) machine.DestroyStream(own->handle);
  }
  green->view.alive = false;
  green->legacy.reset();
  green->per_thread.clear();
  green->gate.reset();
  green->collector.reset();
}

}  // namespace

CUresult cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev,
                          unsigned int flags) {
  if (CUresult result = EnterDevice(dev)) return result;
  if (!phCtx) return CUDA_ERROR_INVALID_VALUE;
  const bool known = flags == CU_GREEN_CTX_DEFAULT_STREAM;
  if (!known && !Broken(Rule::kGreenNeedsItsStream)) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(D().mutex);
  const auto found = Descriptors().find(desc);
  if (found == Descriptors().end()) return CUDA_ERROR_INVALID_VALUE;
  if (found->second->device != dev) return CUDA_ERROR_INVALID_DEVICE;
  if (CUresult result = RetainPrimary(dev)) return result;
  auto made = std::make_unique<Green>();
  Green* const green = made.get();
  green->primary = &D().device(dev).primary;
  green->sms = found->second->sms;
  green->view.device = dev;
  green->view.green = green;
  green->view.id = D().next_id++;
  if (CUresult result = MakeStreams(green)) {
    EndStreams(green);
    ReleasePrimary(dev, &lock);
    return result;
  }
  green->view.alive = true;
  D().greens[green] = std::move(made);
  if (Broken(Rule::kGreenIsNotMadeCurrent)) Self().stack.push_back(&green->view);
  *phCtx = HandleOf(green);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
  if (CUresult result = EnterCall()) return result;
  Lock lock(D().mutex);
  Green* green;
  if (CUresult result = LiveGreen(hCtx, &green)) return result;
  green->alive = false;
  EndStreams(green);
  lock.unlock();
  D().storage.DropContext(HandleOf(&green->view));
  lock.lock();
  if (!Broken(Rule::kGreenHoldsThePrimary)) ReleasePrimary(green->primary->device, &lock);
  return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext* pContext, CUgreenCtx hCtx) {
  if (CUresult result = EnterCall()) return result;
  if (!pContext) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Green* green;
  if (CUresult result = LiveGreen(hCtx, &green)) return result;
  *pContext = HandleOf(&green->view);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long* greenCtxId) {
  if (CUresult result = EnterCall()) return result;
  if (!greenCtxId) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Green* green = CurrentGreen();
  if (!greenCtx && !green) return CUDA_ERROR_INVALID_CONTEXT;
  if (greenCtx) {
    if (CUresult result = LiveGreen(greenCtx, &green)) return result;
  }
  *greenCtxId = green->view.id;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx, unsigned int flags,
                                int priority) {
  if (CUresult result = EnterCall()) return result;
  if (!phStream) return CUDA_ERROR_INVALID_VALUE;
  const bool free = flags == CU_STREAM_NON_BLOCKING;
  if (!free && !Broken(Rule::kGreenStreamsAreNonBlocking)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Green* green;
  if (CUresult result = LiveGreen(greenCtx, &green)) return result;
  if (!green->view.alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  StreamRef stream;
  if (CUresult result = NewStream(green->primary, StreamKind::kNonBlocking, CU_STREAM_NON_BLOCKING,
                                  priority, &stream, green)) {
    return result;
  }
  if (CUresult result = JoinGreen(*stream)) return result;
  *phStream = reinterpret_cast<CUstream>(stream.get());
  D().streams[stream.get()] = stream;
  return CUDA_SUCCESS;
}

namespace {

// What both calls for events check. D().mutex held.
CUresult FindForEvent(CUgreenCtx handle, CUevent event_handle, Green** green, EventRef* event) {
  if (CUresult result = LiveGreen(handle, green)) return result;
  if (!(*green)->view.alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (CUresult result = FindEvent(event_handle, event)) return result;
  return CheckContextNotCapturing((*green)->primary, *green);
}

}  // namespace

CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent) {
  if (CUresult result = EnterCall()) return result;
  EventRef event;
  StreamRef collector;
  std::vector<Work> waits;
  {
    std::lock_guard lock(D().mutex);
    Green* green;
    if (CUresult result = FindForEvent(hCtx, hEvent, &green, &event)) return result;
    if (event->ctx != green->primary) return CUDA_ERROR_INVALID_HANDLE;
    collector = green->collector;
    for (const StreamRef& stream : StreamsOf(*green)) {
      // Of nothing: tells what was submitted last.
      const auto last = D().machine->Submit(stream->handle, std::span<const Work>());
      if (last && *last != 0 && !Broken(Rule::kGreenRecordIsOfAll)) {
        waits.push_back(Work::WaitForStream(stream->handle, *last));
      }
    }
  }
  if (CUresult result = SubmitWork(collector, waits)) return result;
  return RecordEvent(collector, event, 0);
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent) {
  if (CUresult result = EnterCall()) return result;
  EventRef event;
  StreamRef gate;
  Green* green;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindForEvent(hCtx, hEvent, &green, &event)) return result;
    if (event->capture) {
      event->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    gate = green->gate;
  }
  if (CUresult result = WaitForEvent(gate, event, 0)) return result;
  std::vector<StreamRef> streams;
  uint64_t passed;
  {
    std::lock_guard lock(D().mutex);
    const auto last = D().machine->Submit(gate->handle, std::span<const Work>());
    if (!last) return FromCode(last.error());
    passed = *last;
    // Later streams wait, too (JoinGreen).
    if (green->gate == gate) green->gated = passed;
    if (!Broken(Rule::kGreenWaitHoldsAll)) streams = StreamsOf(*green);
  }
  for (const StreamRef& stream : streams) {
    const Work wait = Work::WaitForStream(gate->handle, passed);
    if (CUresult result = SubmitWork(stream, {wait})) return result;
  }
  return CUDA_SUCCESS;
}
