#include "sim/cuda/context/context.h"

#include <sys/mman.h>

#include "sim/cuda/context/green.h"
#include "sim/cuda/faults.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/graph/graph_memory.h"
#include "sim/cuda/memory/array.h"
#include "sim/cuda/memory/external.h"
#include "sim/cuda/memory/ipc.h"
#include "sim/cuda/memory/pool.h"
#include "sim/cuda/memory/vmm.h"
#include "sim/cuda/module/code_memory.h"
#include "sim/cuda/module/function.h"
#include "sim/cuda/stream/executor.h"

namespace prorata::simgpu::driver {
namespace {

// Everything of the context in the Driver's tables. The machine has dropped its side already.
void ForgetObjects(Context* ctx) {
  Driver& driver = D();
  std::erase_if(driver.streams, [&](const auto& entry) {
    const Stream& stream = *entry.second;
    // Those of a green context that was destroyed are the program's to destroy.
    return stream.ctx == ctx && (!stream.green || stream.green->alive);
  });
  std::erase_if(driver.events, [&](const auto& entry) { return entry.second->ctx == ctx; });
  std::erase_if(driver.memory, [&](const auto& entry) {
    const Memory& memory = entry.second;
    if (memory.ctx != ctx) return false;
    if (memory.kind == Memory::Kind::kHost) {
      munmap(reinterpret_cast<void*>(memory.base), memory.mapped_bytes);
    }
    return true;
  });
  ForgetArrays(ctx);
  std::vector<std::shared_ptr<Module>> gone;
  for (const auto& [handle, module] : driver.modules) {
    if (module->ctx == ctx) gone.push_back(module);
  }
  for (const auto& module : gone) ForgetModule(module.get());
  for (const auto& [handle, library] : driver.libraries) {
    std::erase_if(library->globals, [&](const auto& global) { return global.first.first == ctx; });
    ForgetCode(library.get(), ctx);
  }
}

}  // namespace

CUresult NewStream(Context* ctx, StreamKind kind, unsigned flags, int priority, StreamRef* out,
                   Green* green) {
  const int asked = priority;
  if (priority > kLowestPriority) priority = kLowestPriority;
  if (priority < kHighestPriority) priority = kHighestPriority;
  StreamPart part;
  if (green && !Broken(Rule::kGreenRunsOnItsSms)) part.sms = green->sms;
  if (green && kind == StreamKind::kBlocking && !part.sms.all())
    part.legacy = green->legacy->handle;
  auto handle = D().machine->CreateStream(ctx->handle, kind, priority, part);
  if (!handle) return FromCode(handle.error());
  auto stream = std::make_shared<Stream>();
  stream->ctx = ctx;
  stream->green = green;
  stream->handle = *handle;
  stream->kind = kind;
  stream->flags = flags;
  stream->priority = Broken(Rule::kPriorityIsClamped) ? asked : priority;
  stream->id = D().next_id++;
  *out = std::move(stream);
  return CUDA_SUCCESS;
}

CUresult OpenContext(Context* ctx) {
  Driver& driver = D();
  if (CUresult result = ErrorOfProcess()) return result;
  if (driver.process == 0) {
    auto process = driver.machine->RegisterProcess();
    if (!process) return FromCode(process.error());
    driver.process = *process;
  }
  const int device = driver.machine_index[ctx->device];
  auto handle = driver.machine->CreateContext(driver.process, device);
  if (!handle) return FromCode(handle.error());
  ctx->handle = *handle;
  CUresult result = NewStream(ctx, StreamKind::kLegacy, 0, 0, &ctx->legacy);
  if (result != CUDA_SUCCESS) {
    driver.machine->DestroyContext(ctx->handle);
    ctx->handle = 0;
    return result;
  }
  ctx->legacy->is_default = true;
  ctx->heap.Open(driver.machine.get(), ctx->handle, driver.device(ctx->device).arena.get());
  ctx->sticky = CUDA_SUCCESS;
  ctx->limits.clear();
  ctx->blocks.clear();
  ctx->alive = true;
  return CUDA_SUCCESS;
}

void CloseContext(Context* ctx, Lock* lock) {
  const Handle handle = ctx->handle;
  lock->unlock();
  D().storage.DropContext(HandleOf(ctx));
  // As the driver does: what was submitted still runs.
  D().machine->WaitContext(handle);
  DropActions(ctx);
  lock->lock();
  if (!ctx->alive || ctx->handle != handle) return;  // somebody else closed it meanwhile
  ctx->alive = false;
  DropCaptures(ctx);
  if (Context* heir = HolderFor(ctx->device)) {
    PassPoolChunks(ctx, heir);
    PassMappings(ctx, heir);
  }
  DropPoolChunks(ctx);
  DropGraphMemory(ctx);
  DropMappings(ctx);
  DropIpcMemory(ctx);
  DropExternal(ctx);
  ForgetObjects(ctx);
  EndGreens(ctx);
  ctx->peers.clear();
  for (Context* other : D().contexts) other->peers.erase(ctx);
  ctx->legacy.reset();
  ctx->per_thread.clear();
  ctx->heap.Close();
  D().machine->DestroyContext(handle);
  ctx->handle = 0;
}

Context* HolderFor(int device) {
  Context& primary = D().device(device).primary;
  if (primary.alive) return &primary;
  for (Context* ctx : D().contexts) {
    if (ctx->alive && ctx->device == device) return ctx;
  }
  return nullptr;
}

CUresult LiveContext(CUcontext handle, Context** out) {
  const CUresult result = NamedContext(handle, out);
  if (result == CUDA_SUCCESS && (*out)->green) *out = (*out)->green->primary;
  return result;
}

CUresult NamedContext(CUcontext handle, Context** out) {
  if (!handle) {
    Thread& self = Self();
    if (self.stack.empty() || !self.stack.back()) return CUDA_ERROR_INVALID_CONTEXT;
    *out = self.stack.back();
  } else {
    if (!ContextIsKnown(ContextOf(handle))) return CUDA_ERROR_INVALID_CONTEXT;
    *out = ContextOf(handle);
  }
  return (*out)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult ContextForStack(CUcontext handle, Context** out) {
  if (!handle) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult result = NamedContext(handle, out);
  const bool dead_primary = result == CUDA_ERROR_CONTEXT_IS_DESTROYED && (*out)->primary;
  return dead_primary ? CUDA_SUCCESS : result;
}

}  // namespace prorata::simgpu::driver
