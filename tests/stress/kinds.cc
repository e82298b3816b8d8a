// The kinds of allocation of one process. What several processes do together: shared_kinds.cc.

#include <cstdio>
#include <vector>

#include "kinds.h"

namespace prorata::stress {
namespace {

std::optional<Held> Plain(Worker& w) {
  CUdeviceptr address = 0;
  if (!w.Try(w.driver.cuMemAlloc_v2(&address, w.Bytes()), "cuMemAlloc")) return {};
  return Held{[&w, address] { w.Must(w.driver.cuMemFree_v2(address), "cuMemFree"); }};
}

std::optional<Held> Pitched(Worker& w) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  const uint64_t width = 1 + w.random() % 5000;
  const uint64_t height = 1 + w.Bytes() / width;
  if (!w.Try(w.driver.cuMemAllocPitch_v2(&address, &pitch, width, height, 4), "cuMemAllocPitch")) {
    return {};
  }
  return Held{[&w, address] { w.Must(w.driver.cuMemFree_v2(address), "cuMemFree"); }};
}

std::optional<Held> Managed(Worker& w) {
  CUdeviceptr address = 0;
  if (!w.Try(w.driver.cuMemAllocManaged(&address, w.Bytes(), CU_MEM_ATTACH_GLOBAL),
             "cuMemAllocManaged")) {
    return {};
  }
  return Held{[&w, address] { w.Must(w.driver.cuMemFree_v2(address), "cuMemFree"); }};
}

CUarray_format AnyFormat(Worker& w) {
  constexpr CUarray_format kFormats[] = {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_SIGNED_INT16,
                                         CU_AD_FORMAT_HALF, CU_AD_FORMAT_FLOAT};
  return kFormats[w.random() % std::size(kFormats)];
}

std::optional<Held> Array(Worker& w) {
  CUDA_ARRAY3D_DESCRIPTOR shape = {};
  shape.Format = AnyFormat(w);
  shape.NumChannels = 1u << w.random() % 3;
  shape.Width = 1 + w.random() % 4096;
  const uint64_t rows = w.Bytes() / (4 * shape.Width);
  const uint64_t dimensions = 1 + w.random() % 3;
  if (dimensions == 2) shape.Height = 1 + rows % 16384;
  if (dimensions == 3) {
    shape.Height = 1 + rows % 64;
    shape.Depth = 1 + rows / 64 % 256;
  }
  CUarray array = nullptr;
  CUresult made;
  if (dimensions < 3 && w.OneIn(2)) {
    const CUDA_ARRAY_DESCRIPTOR flat = {shape.Width, shape.Height, shape.Format, shape.NumChannels};
    made = w.driver.cuArrayCreate_v2(&array, &flat);
  } else {
    made = w.driver.cuArray3DCreate_v2(&array, &shape);
  }
  if (!w.Try(made, "cuArrayCreate")) return {};
  return Held{[&w, array] { w.Must(w.driver.cuArrayDestroy(array), "cuArrayDestroy"); }};
}

std::optional<Held> Mipmap(Worker& w) {
  CUDA_ARRAY3D_DESCRIPTOR shape = {};
  shape.Format = AnyFormat(w);
  shape.NumChannels = 1u << w.random() % 3;
  shape.Width = 1u << w.random() % 12;
  shape.Height = 1u << w.random() % 11;
  CUmipmappedArray array = nullptr;
  const auto levels = static_cast<unsigned>(1 + w.random() % 6);
  if (!w.Try(w.driver.cuMipmappedArrayCreate(&array, &shape, levels), "cuMipmappedArrayCreate",
             {CUDA_ERROR_INVALID_VALUE})) {  // more levels than the size has
    return {};
  }
  return Held{
      [&w, array] { w.Must(w.driver.cuMipmappedArrayDestroy(array), "cuMipmappedArrayDestroy"); }};
}

void FreeAsync(Worker& w, CUdeviceptr address) {
  w.Must(w.driver.cuMemFreeAsync(address, w.stream), "cuMemFreeAsync");
  if (w.OneIn(2)) w.Must(w.driver.cuStreamSynchronize(w.stream), "cuStreamSynchronize");
}

std::optional<Held> Async(Worker& w) {
  CUdeviceptr address = 0;
  if (!w.Try(w.driver.cuMemAllocAsync(&address, w.Bytes(), w.stream), "cuMemAllocAsync")) return {};
  if (w.OneIn(8)) {
    CUmemoryPool pool = nullptr;
    w.Must(w.driver.cuDeviceGetDefaultMemPool(&pool, w.device), "cuDeviceGetDefaultMemPool");
    w.Must(w.driver.cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
  }
  return Held{[&w, address] { FreeAsync(w, address); }};
}

// From a pool that was made for it, may keep what is freed, and may be destroyed before what is
// allocated from it is freed.
std::optional<Held> OwnPool(Worker& w) {
  if (w.pool == nullptr) {
    CUmemPoolProps properties = {};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, w.device};
    if (!w.Try(w.driver.cuMemPoolCreate(&w.pool, &properties), "cuMemPoolCreate")) return {};
    cuuint64_t keep = w.OneIn(2) ? ~cuuint64_t{0} : 0;
    w.Must(w.driver.cuMemPoolSetAttribute(w.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep),
           "cuMemPoolSetAttribute");
  }
  CUdeviceptr address = 0;
  const bool made = w.Try(w.driver.cuMemAllocFromPoolAsync(&address, w.Bytes(), w.pool, w.stream),
                          "cuMemAllocFromPool");
  if (w.OneIn(8)) {
    w.Must(w.driver.cuMemPoolDestroy(w.pool), "cuMemPoolDestroy");
    w.pool = nullptr;
  } else if (w.OneIn(8)) {
    w.Must(w.driver.cuMemPoolTrimTo(w.pool, w.Bytes()), "cuMemPoolTrimTo");
  }
  if (!made) return {};
  return Held{[&w, address] { FreeAsync(w, address); }};
}

std::optional<Held> Vmm(Worker& w) {
  const CUmemAllocationProp properties = PhysicalProperties(w.device);
  const uint64_t bytes = Slabs(w.Bytes());
  CUmemGenericAllocationHandle handle = 0;
  if (!w.Try(w.driver.cuMemCreate(&handle, bytes, &properties, 0), "cuMemCreate")) return {};
  return Map(w, handle, bytes);
}

// A context with memory of its own in it, which goes with it.
std::optional<Held> Context(Worker& w) {
  CUcontext made = nullptr, popped = nullptr;
  if (!w.Try(w.driver.cuCtxCreate_v2(&made, 0, w.device), "cuCtxCreate")) return {};
  for (uint64_t i = w.random() % 3; i > 0; --i) {
    CUdeviceptr address = 0;
    w.Try(w.driver.cuMemAlloc_v2(&address, w.Bytes()), "cuMemAlloc in a context");
  }
  w.Must(w.driver.cuCtxPopCurrent_v2(&popped), "cuCtxPopCurrent");
  return Held{[&w, made] { w.Must(w.driver.cuCtxDestroy_v2(made), "cuCtxDestroy"); }};
}

// A green context, and memory that was allocated in it, which is the primary context's.
std::optional<Held> Green(Worker& w) {
  CUdevResource all = {};
  CUdevResourceDesc desc = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext inside = nullptr;
  w.Must(w.driver.cuDeviceGetDevResource(w.device, &all, CU_DEV_RESOURCE_TYPE_SM),
         "cuDeviceGetDevResource");
  w.Must(w.driver.cuDevResourceGenerateDesc(&desc, &all, 1), "cuDevResourceGenerateDesc");
  if (!w.Try(w.driver.cuGreenCtxCreate(&green, desc, w.device, CU_GREEN_CTX_DEFAULT_STREAM),
             "cuGreenCtxCreate")) {
    return {};
  }
  w.Must(w.driver.cuCtxFromGreenCtx(&inside, green), "cuCtxFromGreenCtx");
  w.Must(w.driver.cuCtxPushCurrent_v2(inside), "cuCtxPushCurrent");
  CUdeviceptr address = 0;
  const bool allocated = w.Try(w.driver.cuMemAlloc_v2(&address, w.Bytes()), "cuMemAlloc in green");
  w.Must(w.driver.cuCtxPopCurrent_v2(&inside), "cuCtxPopCurrent");
  const bool frees_first = w.OneIn(2);
  return Held{[&w, green, address, allocated, frees_first] {
    const auto give_back = [&] {
      if (allocated) w.Must(w.driver.cuMemFree_v2(address), "cuMemFree of a green context's");
    };
    if (frees_first) give_back();
    w.Must(w.driver.cuGreenCtxDestroy(green), "cuGreenCtxDestroy");
    if (!frees_first) give_back();
  }};
}

// Its global variable takes device memory.
std::optional<Held> Module(Worker& w) {
  char text[256];
  std::snprintf(text, sizeof text,
                ".version 7.0\n.target sm_70\n.address_size 64\n"
                ".visible .global .align 4 .b8 big[%llu];\n"
                ".visible .entry nothing() { ret; }\n",
                static_cast<unsigned long long>(w.Bytes()));
  CUmodule module = nullptr;
  if (!w.Try(w.driver.cuModuleLoadData(&module, text), "cuModuleLoadData")) return {};
  CUdeviceptr address = 0;
  size_t bytes = 0;
  w.Try(w.driver.cuModuleGetGlobal_v2(&address, &bytes, module, "big"), "cuModuleGetGlobal");
  return Held{[&w, module] { w.Must(w.driver.cuModuleUnload(module), "cuModuleUnload"); }};
}

// Memory of allocation nodes, freed by the graph itself or by its launcher.
std::optional<Held> Graph(Worker& w) {
  CUgraph graph = nullptr;
  if (!w.Try(w.driver.cuGraphCreate(&graph, 0), "cuGraphCreate")) return {};
  CUDA_MEM_ALLOC_NODE_PARAMS parameters = {};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, w.device};
  parameters.bytesize = w.Bytes();
  CUgraphNode allocation = nullptr, freeing = nullptr;
  CUgraphExec exec = nullptr;
  const bool frees = w.OneIn(2);
  bool built = w.Try(w.driver.cuGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &parameters),
                     "add alloc node");
  if (built && frees) {
    built = w.Try(w.driver.cuGraphAddMemFreeNode(&freeing, graph, &allocation, 1, parameters.dptr),
                  "add free node");
  }
  built = built && w.Try(w.driver.cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
  const bool launched = built && w.Try(w.driver.cuGraphLaunch(exec, w.stream), "cuGraphLaunch");
  const CUdeviceptr address = launched && !frees ? parameters.dptr : 0;
  const auto release = [&w, graph, exec, address] {
    if (address != 0)
      w.Must(w.driver.cuMemFreeAsync(address, w.stream), "free of a graph's memory");
    w.Must(w.driver.cuStreamSynchronize(w.stream), "cuStreamSynchronize");
    if (exec != nullptr) w.Must(w.driver.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    w.Must(w.driver.cuGraphDestroy(graph), "cuGraphDestroy");
    if (w.OneIn(4)) w.Must(w.driver.cuDeviceGraphMemTrim(w.device), "cuDeviceGraphMemTrim");
  };
  if (launched) return Held{release};
  release();
  return {};
}

constexpr Kind kKinds[] = {
    {"plain", 4, Plain},          {"pitched", 4, Pitched},
    {"managed", 4, Managed},      {"array", 4, Array},
    {"mipmap", 4, Mipmap},        {"async", 4, Async},
    {"pool", 4, OwnPool},         {"vmm", 4, Vmm},
    {"context", 1, Context},      {"module", 2, Module},
    {"graph", 2, Graph},          {"ipc", 3, IpcExport},
    {"ipc_import", 3, IpcImport}, {"vmm_shared", 3, VmmExport},
    {"vmm_import", 3, VmmImport}, {"green", 1, Green},
};
static_assert(std::size(kKinds) <= kMaxKinds);

}  // namespace

std::span<const Kind> Kinds() { return kKinds; }

}  // namespace prorata::stress
