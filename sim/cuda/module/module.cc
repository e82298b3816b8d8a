#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/unique_fd.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/module/code_memory.h"
#include "sim/cuda/module/function.h"

namespace prorata::simgpu::driver {
namespace {

// Host objects come as bytes in memory, and dlopen wants a file: one in memory will do.
CUresult OpenHostObject(const void* data, uint64_t bytes, void** object) {
  UniqueFd fd(memfd_create("prorata-host-image", MFD_CLOEXEC));
  if (!fd) return CUDA_ERROR_OPERATING_SYSTEM;
  const char* at = static_cast<const char*>(data);
  for (uint64_t left = bytes; left > 0;) {
    const ssize_t wrote = write(fd.get(), at, left);
    if (wrote <= 0) return CUDA_ERROR_OPERATING_SYSTEM;
    at += wrote;
    left -= static_cast<uint64_t>(wrote);
  }
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd.get());
  *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (*object) return CUDA_SUCCESS;
  std::fprintf(stderr, "prorata simulated GPU: a host image cannot be loaded: %s\n", dlerror());
  return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
}

bool FillHostFunction(void* object, const std::string& name, Function* function) {
  const auto* sizes = static_cast<const unsigned*>(dlsym(object, (name + "__param_sizes").c_str()));
  void* kernel = dlsym(object, name.c_str());
  if (!sizes || !kernel) return false;
  function->host_kernel = reinterpret_cast<HostKernelFunction>(kernel);
  function->host_duration =
      reinterpret_cast<HostDurationFunction>(dlsym(object, (name + "__duration_ns").c_str()));
  function->host_sm = reinterpret_cast<HostSmFunction>(dlsym(object, (name + "__sm_ppm").c_str()));
  function->host_rendezvous =
      reinterpret_cast<HostRendezvousFunction>(dlsym(object, (name + "__rendezvous").c_str()));
  uint32_t offset = 0;
  for (const unsigned* size = sizes; *size != 0; ++size) {
    // Aligned as C would: to the largest power of two that divides the size, at most 16.
    const uint32_t alignment = std::min(*size & (0u - *size), 16u);
    offset = (offset + alignment - 1) / alignment * alignment;
    function->parameters.push_back({offset, *size});
    offset += *size;
  }
  function->parameters_known = true;
  return true;
}

// What a block may use in all without opting in to more.
constexpr int kPortableShared = 49152;

bool FillImageFunction(const Image& image, const std::string& name, Function* function) {
  const ImageKernel* kernel = image.FindKernel(name);
  if (!kernel) return false;
  function->parameters = kernel->parameters;
  function->parameters_known = kernel->parameters_known;
  function->registers = kernel->registers;
  function->shared_bytes = kernel->shared_bytes;
  function->local_bytes = kernel->local_bytes;
  function->max_threads = kernel->max_threads;
  function->max_dynamic_shared_bytes = std::max(0, kPortableShared - kernel->shared_bytes);
  return true;
}

}  // namespace

Module::~Module() {
  if (host_object) dlclose(host_object);
}

CUresult ReadWholeFile(const char* path, std::vector<char>* out) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (!fd || fstat(fd.get(), &info) != 0) return CUDA_ERROR_FILE_NOT_FOUND;
  out->resize(static_cast<size_t>(info.st_size) + 1);  // ends with a null: it may be PTX
  size_t have = 0;
  while (have < static_cast<size_t>(info.st_size)) {
    const ssize_t got = read(fd.get(), out->data() + have, out->size() - 1 - have);
    if (got <= 0) return CUDA_ERROR_FILE_NOT_FOUND;
    have += static_cast<size_t>(got);
  }
  return CUDA_SUCCESS;
}

CUresult LoadModule(const void* data, CUdevice device, std::shared_ptr<Module>* out) {
  auto module = std::make_shared<Module>();
  const DeviceConfig& config = D().config(device);
  const int arch = config.compute_major * 10 + config.compute_minor;
  if (CUresult result = ParseImage(data, arch, &module->image)) return result;
  if (module->image.kind == Image::Kind::kHostElf) {
    if (CUresult result = OpenHostObject(data, module->image.bytes, &module->host_object)) {
      return result;
    }
  }
  *out = std::move(module);
  return CUDA_SUCCESS;
}

CUresult FindFunction(Module* module, const std::string& name, std::shared_ptr<Function>* out) {
  auto found = module->functions.find(name);
  if (found != module->functions.end()) {
    *out = found->second;
    return CUDA_SUCCESS;
  }
  auto function = std::make_shared<Function>();
  function->name = name;
  function->module = module;
  function->owner = module->weak_from_this();
  const bool exists = module->host_object
                          ? FillHostFunction(module->host_object, name, function.get())
                          : FillImageFunction(module->image, name, function.get());
  if (!exists && !Broken(Rule::kUnknownNamesAreNotFound)) return CUDA_ERROR_NOT_FOUND;
  module->functions[name] = function;
  D().functions[function.get()] = function;
  *out = std::move(function);
  return CUDA_SUCCESS;
}

CUresult FindFunction(CUfunction handle, std::shared_ptr<Function>* out) {
  auto found = D().functions.find(handle);
  if (found == D().functions.end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = found->second;
  return CUDA_SUCCESS;
}

CUresult FindModule(CUmodule handle, std::shared_ptr<Module>* out) {
  auto found = D().modules.find(handle);
  if (found == D().modules.end()) {
    found = D().libraries.find(handle);  // a library is its own module
    if (found == D().libraries.end()) return CUDA_ERROR_INVALID_HANDLE;
  }
  *out = found->second;
  return CUDA_SUCCESS;
}

CUresult FindGlobal(Module* module, Context* ctx, const char* name, uint64_t* address,
                    size_t* bytes) {
  if (module->host_object) {
    const auto* names =
        static_cast<const char* const*>(dlsym(module->host_object, "prorata_globals"));
    for (; names && *names; ++names) {
      if (std::strcmp(*names, name) != 0) continue;
      void* symbol = dlsym(module->host_object, name);
      if (!symbol) return CUDA_ERROR_NOT_FOUND;
      // Its size: up to the image to know; a page is what a copy may reach without harm to others.
      *address = AddressOf(symbol);
      *bytes = sizeof(uint64_t);
      if (D().memory.contains(*address)) return CUDA_SUCCESS;
      Memory memory;
      memory.kind = Memory::Kind::kGlobal;
      memory.base = *address;
      memory.bytes = *bytes;
      memory.ctx = ctx;
      memory.device = ctx->device;
      AddMemory(memory);
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
  }
  uint64_t size = 0;
  for (const ImageGlobal& global : module->image.globals) {
    if (global.name == name) size = std::max<uint64_t>(global.bytes, 1);
  }
  if (size == 0) return CUDA_ERROR_NOT_FOUND;
  *bytes = size;
  auto [entry, added] = module->globals.try_emplace({ctx, name}, 0);
  if (added || Broken(Rule::kGlobalsHaveOneAddress)) {
    const CUresult result = AllocateDevice(ctx, size, Memory::Kind::kGlobal, &entry->second);
    if (result != CUDA_SUCCESS) {
      module->globals.erase(entry);
      return result;
    }
  }
  *address = entry->second;
  return CUDA_SUCCESS;
}

void ForgetModule(Module* module) {
  for (const auto& [name, function] : module->functions) D().functions.erase(function.get());
  for (const auto& [key, address] : module->globals) {
    if (key.first->alive) ReleaseDevice(address);
  }
  GiveCode(module);
  // Work that was launched holds its Function, and through it needs the code: the Module object
  // goes with the last of them.
  D().modules.erase(module);
  D().libraries.erase(module);
}

}  // namespace prorata::simgpu::driver
