#include "sim/cuda/module/code_memory.h"

#include <cstdlib>
#include <string_view>

#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/pool.h"
#include "sim/cuda/module/function.h"

namespace prorata::simgpu::driver {
namespace {

CUresult Take(Context* ctx, uint64_t bytes, uint64_t* address) {
  Code code = ctx->heap.AllocateSlabs(bytes, address);
  if (code == Code::kOutOfMemory) {
    TrimPools(ctx->device, true);
    code = ctx->heap.AllocateSlabs(bytes, address);
  }
  return FromCode(code);
}

// Makes the block of a limit so large.
CUresult Resize(Context* ctx, CUlimit limit, uint64_t bytes) {
  Context::Block& block = ctx->blocks[limit];
  if (block.bytes == bytes) return CUDA_SUCCESS;
  uint64_t address = 0;
  if (bytes > 0) {
    if (CUresult result = Take(ctx, bytes, &address)) return result;
  }
  if (block.bytes > 0) ctx->heap.Free(block.address);
  block = {address, bytes};
  return CUDA_SUCCESS;
}

uint64_t Beyond(const Context* ctx, CUlimit limit, size_t by_default) {
  const auto set = ctx->limits.find(limit);
  return set != ctx->limits.end() && set->second > by_default ? set->second - by_default : 0;
}

}  // namespace

bool LoadsEagerly() {
  const char* asked = std::getenv("CUDA_MODULE_LOADING");
  return asked && std::string_view(asked) == "EAGER";
}

CUresult TakeCode(Module* module, Context* ctx) {
  const uint64_t bytes = D().config(ctx->device).module_bytes;
  if (module->code.contains(ctx)) return CUDA_SUCCESS;
  if (CUresult result = SizeHeaps(ctx)) return result;
  uint64_t address = 0;
  if (bytes > 0) {
    if (CUresult result = Take(ctx, bytes, &address)) return result;
  }
  module->code[ctx] = address;
  CUresult result = CUDA_SUCCESS;
  for (const ImageGlobal& global : module->image.globals) {
    uint64_t at;
    size_t size;
    result = FindGlobal(module, ctx, global.name.c_str(), &at, &size);
    if (result != CUDA_SUCCESS) break;
  }
  if (result == CUDA_SUCCESS) return result;
  std::erase_if(module->globals, [ctx](const auto& global) {
    if (global.first.first != ctx) return false;
    ReleaseDevice(global.second);
    return true;
  });
  if (address != 0) ctx->heap.Free(address);
  module->code.erase(ctx);
  return result;
}

void GiveCode(Module* module) {
  for (const auto& [ctx, address] : module->code) {
    if (ctx->alive && address != 0) ctx->heap.Free(address);
  }
  module->code.clear();
}

void ForgetCode(Module* module, Context* ctx) { module->code.erase(ctx); }

CUresult SizeHeaps(Context* ctx) {
  if (ctx->limits.empty() && ctx->blocks.empty()) return CUDA_SUCCESS;
  for (const auto& [limit, by_default] :
       {std::pair{CU_LIMIT_PRINTF_FIFO_SIZE, kDefaultPrintfBytes},
        std::pair{CU_LIMIT_MALLOC_HEAP_SIZE, kDefaultHeapBytes}}) {
    if (CUresult result = Resize(ctx, limit, Beyond(ctx, limit, by_default))) return result;
  }
  return CUDA_SUCCESS;
}

CUresult SizeStacks(Context* ctx, size_t bytes_of_each) {
  const uint64_t threads = uint64_t{D().config(ctx->device).sm_count} * kThreadsPerSm;
  const uint64_t more = bytes_of_each > kDefaultStackBytes ? bytes_of_each - kDefaultStackBytes : 0;
  return Resize(ctx, CU_LIMIT_STACK_SIZE, more * threads);
}

CUresult SizePendingLaunches(Context* ctx, size_t count) {
  const uint64_t more = count > kDefaultPendingLaunches ? count - kDefaultPendingLaunches : 0;
  if (more > ~uint64_t{0} / kPendingLaunchBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  return Resize(ctx, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, more * kPendingLaunchBytes);
}

}  // namespace prorata::simgpu::driver
