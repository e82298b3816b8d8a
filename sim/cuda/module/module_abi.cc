// Modules: images loaded into one context.

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/context/green.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/module/code_memory.h"
#include "sim/cuda/module/function.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

CUresult Load(CUmodule* out, const void* image) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = CheckCaptureSafe()) return result;
  std::shared_ptr<Module> module;
  if (CUresult result = LoadModule(image, ctx->device, &module)) return result;
  module->ctx = ctx;
  std::lock_guard lock(D().mutex);
  if (CUresult result = TakeCode(module.get(), ctx)) return result;
  *out = reinterpret_cast<CUmodule>(module.get());
  D().modules[module.get()] = std::move(module);
  return CUDA_SUCCESS;
}

// Lists what the image names, or of a host image what has been asked for.
std::vector<std::shared_ptr<Function>> AllFunctions(Module* module) {
  std::vector<std::shared_ptr<Function>> out;
  for (const ImageKernel& kernel : module->image.kernels) {
    std::shared_ptr<Function> function;
    FindFunction(module, kernel.name, &function);
  }
  for (const auto& [name, function] : module->functions) out.push_back(function);
  return out;
}

}  // namespace

CUresult cuModuleLoadData(CUmodule* module, const void* image) { return Load(module, image); }

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                            CUjit_option* options, void** optionValues) {
  // The compiler's logs are empty: nothing is compiled.
  for (unsigned i = 0; options && optionValues && i < numOptions; ++i) {
    if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
        options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      optionValues[i] = nullptr;
    }
  }
  return Load(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
  return Load(module, fatCubin);
}

CUresult cuModuleLoad(CUmodule* module, const char* fname) {
  if (CUresult result = EnterCall()) return result;
  std::vector<char> image;
  if (CUresult result = ReadWholeFile(fname, &image)) return result;
  return Load(module, image.data());
}

CUresult cuModuleUnload(CUmodule hmod) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  auto found = D().modules.find(hmod);
  if (found == D().modules.end()) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Module> module = found->second;
  ForgetModule(module.get());
  return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = LoadsEagerly() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!hfunc || !name) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Module> module;
  if (CUresult result = FindModule(hmod, &module)) return result;
  std::shared_ptr<Function> function;
  if (CUresult result = FindFunction(module.get(), name, &function)) return result;
  *hfunc = reinterpret_cast<CUfunction>(function.get());
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule mod) {
  if (CUresult result = EnterCall()) return result;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Module> module;
  if (CUresult result = FindModule(mod, &module)) return result;
  *count = static_cast<unsigned>(AllFunctions(module.get()).size());
  return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions,
                                    CUmodule mod) {
  if (CUresult result = EnterCall()) return result;
  if (!functions || numFunctions == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Module> module;
  if (CUresult result = FindModule(mod, &module)) return result;
  const auto all = AllFunctions(module.get());
  for (size_t i = 0; i < numFunctions; ++i) {
    functions[i] = i < all.size() ? reinterpret_cast<CUfunction>(all[i].get()) : nullptr;
  }
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod, const char* name) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Module> module;
  if (CUresult result = FindModule(hmod, &module)) return result;
  uint64_t address;
  size_t size;
  if (CUresult result = FindGlobal(module.get(), ctx, name, &address, &size)) return result;
  if (dptr) *dptr = address;
  if (bytes) *bytes = size;
  return CUDA_SUCCESS;
}

namespace {

CUresult NewLibrary(CUlibrary* out, const void* code) {
  if (CUresult result = EnterCall()) return result;
  if (!out || !code) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> library;
  // A library is read once, for one kind of device: that of the current context, or the first.
  Context* ctx = Self().stack.empty() ? nullptr : Self().stack.back();
  if (ctx && ctx->green) ctx = ctx->green->primary;
  if (CUresult result = LoadModule(code, ctx ? ctx->device : 0, &library)) return result;
  library->is_library = true;
  std::lock_guard lock(D().mutex);
  if (LoadsEagerly() && ctx && ctx->alive) {
    if (CUresult result = TakeCode(library.get(), ctx)) return result;
  }
  *out = reinterpret_cast<CUlibrary>(library.get());
  D().libraries[library.get()] = std::move(library);
  return CUDA_SUCCESS;
}

CUresult FindLibrary(CUlibrary handle, std::shared_ptr<Module>* out) {
  auto found = D().libraries.find(handle);
  if (found == D().libraries.end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = found->second;
  return CUDA_SUCCESS;
}

CUresult LibraryGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary handle, const char* name,
                       bool managed_only = false) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Module> library;
  if (CUresult result = FindLibrary(handle, &library)) return result;
  for (const ImageGlobal& global : library->image.globals) {
    if (managed_only && global.name == name && !global.managed) return CUDA_ERROR_NOT_FOUND;
  }
  uint64_t address;
  size_t size;
  if (CUresult result = FindGlobal(library.get(), ctx, name, &address, &size)) return result;
  if (dptr) *dptr = address;
  if (bytes) *bytes = size;
  return CUDA_SUCCESS;
}

}  // namespace

// Libraries: images of the process, in every context at once.

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                           unsigned int, CUlibraryOption*, void**, unsigned int) {
  return NewLibrary(library, code);
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option*, void**,
                               unsigned int, CUlibraryOption*, void**, unsigned int) {
  if (CUresult result = EnterCall()) return result;
  std::vector<char> image;
  if (CUresult result = ReadWholeFile(fileName, &image)) return result;
  return NewLibrary(library, image.data());
}

CUresult cuLibraryUnload(CUlibrary handle) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Module> library;
  if (CUresult result = FindLibrary(handle, &library)) return result;
  ForgetModule(library.get());
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* pKernel, CUlibrary handle, const char* name) {
  if (CUresult result = EnterCall()) return result;
  if (!pKernel || !name) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Module> library;
  if (CUresult result = FindLibrary(handle, &library)) return result;
  std::shared_ptr<Function> function;
  if (CUresult result = FindFunction(library.get(), name, &function)) return result;
  *pKernel = reinterpret_cast<CUkernel>(function.get());
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule* pMod, CUlibrary handle) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!pMod) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Module> library;
  if (CUresult result = FindLibrary(handle, &library)) return result;
  if (CUresult result = TakeCode(library.get(), ctx)) return result;
  *pMod = reinterpret_cast<CUmodule>(library.get());
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  return cuModuleGetFunctionCount(count, reinterpret_cast<CUmodule>(lib));
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
  return cuModuleEnumerateFunctions(reinterpret_cast<CUfunction*>(kernels), numKernels,
                                    reinterpret_cast<CUmodule>(lib));
}

CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
  return LibraryGlobal(dptr, bytes, library, name);
}

CUresult cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                             const char* name) {
  return LibraryGlobal(dptr, bytes, library, name, true);
}
