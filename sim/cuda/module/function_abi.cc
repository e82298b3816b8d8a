// Functions and kernels: their attributes, parameters and occupancy. Both handles are the address
// of one Function.

#include <algorithm>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/module/function.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

using FunctionRef = std::shared_ptr<Function>;

// What a block may opt in to, as cuDeviceGetAttribute says.
constexpr int kMaxOptInShared = 232448;
constexpr int kSharedPerSm = 233472;
constexpr int kReservedShared = 1024;
constexpr int kRegistersPerSm = 65536;
constexpr int kBlocksPerSm = 32;

CUresult LookupFunction(const void* handle, FunctionRef* out) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  return FindFunction(static_cast<CUfunction>(const_cast<void*>(handle)), out);
}

CUresult GetFunctionAttribute(int* out, CUfunction_attribute attribute, const void* handle,
                              CUdevice device) {
  FunctionRef function;
  if (CUresult result = LookupFunction(handle, &function)) return result;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  const DeviceConfig& config = D().config(device);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *out = function->max_threads;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *out = function->shared_bytes;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *out = function->local_bytes;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *out = function->registers;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *out = config.compute_major * 10 + config.compute_minor;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *out = function->max_dynamic_shared_bytes;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *out = function->carveout;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *out = function->non_portable_cluster;
      return CUDA_SUCCESS;
    default:
      if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
      *out = 0;
      return CUDA_SUCCESS;
  }
}

CUresult SetAttribute(CUfunction_attribute attribute, int value, const void* handle) {
  FunctionRef function;
  if (CUresult result = LookupFunction(handle, &function)) return result;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || value > kMaxOptInShared - function->shared_bytes) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      if (!Broken(Rule::kAttributesAreKept)) function->max_dynamic_shared_bytes = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      function->carveout = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      function->non_portable_cluster = value != 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult ParamInfo(const void* handle, size_t index, size_t* offset, size_t* size) {
  FunctionRef function;
  if (CUresult result = LookupFunction(handle, &function)) return result;
  if (!offset) return CUDA_ERROR_INVALID_VALUE;
  if (index >= function->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->parameters[index].offset;
  if (size) *size = function->parameters[index].bytes;
  return CUDA_SUCCESS;
}

CUresult Name(const char** name, const void* handle) {
  FunctionRef function;
  if (CUresult result = LookupFunction(handle, &function)) return result;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

// Registers are given to warps by 256, and an SM's four quarters have as many each.
int WarpsByRegisters(const Function& function) {
  const int per_warp = (function.registers * 32 + 255) / 256 * 256;
  return kRegistersPerSm / std::max(per_warp, 256) / 4 * 4;
}

// A cluster runs within one GPC: up to 9 pairs of SMs each (the H100 white paper), as even as they
// can be. cuDNN 8.9 learns the GPCs of a device from the answers for all cluster sizes, and fails
// where no division into GPCs would give them.
unsigned ClustersAtOnce(unsigned sm_count, unsigned blocks_per_sm, unsigned cluster) {
  constexpr unsigned kPairsPerGpc = 9;
  const unsigned pairs = (sm_count + 1) / 2;
  const unsigned gpcs = (pairs + kPairsPerGpc - 1) / kPairsPerGpc;
  unsigned clusters = 0;
  unsigned left = sm_count;
  for (unsigned gpc = 0; gpc < gpcs; ++gpc) {
    const unsigned sms = std::min(left, 2 * (pairs / gpcs + (gpc < pairs % gpcs ? 1 : 0)));
    clusters += sms * blocks_per_sm / cluster;
    left -= sms;
  }
  return clusters;
}

}  // namespace

namespace prorata::simgpu::driver {

int BlocksPerSm(const Function& function, int block, size_t dynamic_shared) {
  if (block > function.max_threads) return 0;
  const int warps = (block + 31) / 32;
  const int by_threads = std::min(static_cast<int>(kThreadsPerSm) / 32 / warps, kBlocksPerSm);
  const int by_registers = WarpsByRegisters(function) / warps;
  const size_t shared =
      static_cast<size_t>(function.shared_bytes) + dynamic_shared + kReservedShared;
  return std::min({by_threads, by_registers, static_cast<int>(kSharedPerSm / shared)});
}

}  // namespace prorata::simgpu::driver

namespace {

CUresult MaxBlocks(int* out, CUfunction func, int block, size_t shared) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  FunctionRef function;
  if (CUresult result = LookupFunction(func, &function)) return result;
  if (!out || block <= 0) return CUDA_ERROR_INVALID_VALUE;
  *out = BlocksPerSm(*function, block, shared);
  return CUDA_SUCCESS;
}

CUresult PotentialBlock(int* grid, int* block, CUfunction func, CUoccupancyB2DSize to_shared,
                        size_t shared, int limit) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  FunctionRef function;
  if (CUresult result = LookupFunction(func, &function)) return result;
  if (!grid || !block) return CUDA_ERROR_INVALID_VALUE;
  int best = 0;
  int best_threads = 0;
  int best_blocks = 0;
  const int largest = limit > 0 ? std::min(limit, 1024) : 1024;
  for (int size = largest / 32 * 32; size > 0; size -= 32) {
    const int blocks = BlocksPerSm(*function, size, to_shared ? to_shared(size) : shared);
    if (blocks * size <= best_threads) continue;
    best = size;
    best_threads = blocks * size;
    best_blocks = blocks;
  }
  *block = best;
  *grid = best_blocks * static_cast<int>(D().config(ctx->device).sm_count);
  return CUDA_SUCCESS;
}

CUresult CurrentDevice(CUdevice* device) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  *device = ctx->device;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  CUdevice device;
  if (CUresult result = CurrentDevice(&device)) return result;
  return GetFunctionAttribute(pi, attrib, hfunc, device);
}
CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  return GetFunctionAttribute(pi, attrib, kernel, dev);
}
CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  return SetAttribute(attrib, value, hfunc);
}
CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  return SetAttribute(attrib, val, kernel);
}
CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache) {
  FunctionRef function;
  return LookupFunction(hfunc, &function);
}
CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice dev) {
  if (CUresult result = EnterDevice(dev)) return result;
  FunctionRef function;
  return LookupFunction(kernel, &function);
}
CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig) {
  FunctionRef function;
  return LookupFunction(hfunc, &function);
}
CUresult cuFuncGetName(const char** name, CUfunction hfunc) { return Name(name, hfunc); }
CUresult cuKernelGetName(const char** name, CUkernel hfunc) { return Name(name, hfunc); }
CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset,
                            size_t* paramSize) {
  return ParamInfo(func, paramIndex, paramOffset, paramSize);
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                              size_t* paramSize) {
  return ParamInfo(kernel, paramIndex, paramOffset, paramSize);
}

CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
  FunctionRef function;
  if (CUresult result = LookupFunction(hfunc, &function)) return result;
  if (!hmod) return CUDA_ERROR_INVALID_VALUE;
  *hmod = reinterpret_cast<CUmodule>(function->module);
  return CUDA_SUCCESS;
}
CUresult cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
  FunctionRef function;
  if (CUresult result = LookupFunction(kernel, &function)) return result;
  if (!pLib) return CUDA_ERROR_INVALID_VALUE;
  *pLib = reinterpret_cast<CUlibrary>(function->module);
  return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  FunctionRef function;
  if (CUresult result = LookupFunction(kernel, &function)) return result;
  if (!pFunc) return CUDA_ERROR_INVALID_VALUE;
  *pFunc = reinterpret_cast<CUfunction>(function.get());
  return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function) {
  FunctionRef found;
  if (CUresult result = LookupFunction(function, &found)) return result;
  found->loaded = true;
  return CUDA_SUCCESS;
}
CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  FunctionRef found;
  if (CUresult result = LookupFunction(function, &found)) return result;
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  *state = found->loaded ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
  return MaxBlocks(numBlocks, func, blockSize, dynamicSMemSize);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func,
                                                              int blockSize, size_t dynamicSMemSize,
                                                              unsigned int) {
  return MaxBlocks(numBlocks, func, blockSize, dynamicSMemSize);
}
CUresult cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit) {
  return PotentialBlock(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize,
                        blockSizeLimit);
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize,
                                                   CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit,
                                                   unsigned int) {
  return PotentialBlock(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize,
                        blockSizeLimit);
}
CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func,
                                                 int numBlocks, int blockSize) {
  FunctionRef function;
  if (CUresult result = LookupFunction(func, &function)) return result;
  if (!dynamicSmemSize || numBlocks <= 0 || blockSize <= 0) return CUDA_ERROR_INVALID_VALUE;
  const int each = kSharedPerSm / numBlocks - kReservedShared - function->shared_bytes;
  *dynamicSmemSize = static_cast<size_t>(std::clamp(each, 0, kMaxOptInShared));
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func,
                                      const CUlaunchConfig* config) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  FunctionRef function;
  if (CUresult result = LookupFunction(func, &function)) return result;
  if (!numClusters || !config) return CUDA_ERROR_INVALID_VALUE;
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& dim = attribute.value.clusterDim;
    cluster = std::max(1u, dim.x * dim.y * dim.z);
  }
  const unsigned block = config->blockDimX * config->blockDimY * config->blockDimZ;
  if (block == 0 || block > 1024) return CUDA_ERROR_INVALID_VALUE;
  const auto per_sm = static_cast<unsigned>(
      BlocksPerSm(*function, static_cast<int>(block), config->sharedMemBytes));
  *numClusters =
      static_cast<int>(ClustersAtOnce(D().config(ctx->device).sm_count, per_sm, cluster));
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func,
                                            const CUlaunchConfig* config) {
  FunctionRef function;
  if (CUresult result = LookupFunction(func, &function)) return result;
  if (!clusterSize || !config) return CUDA_ERROR_INVALID_VALUE;
  *clusterSize = function->non_portable_cluster ? 16 : 8;
  return CUDA_SUCCESS;
}
