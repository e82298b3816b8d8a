#include "apps/gpuload/driver.h"

#include <dlfcn.h>

#include <string_view>

namespace prorata::gpuload {
namespace {

Result<void*> Open(const Options& options) {
  const char* name = "libcuda.so.1";
  int flags = RTLD_NOW | RTLD_LOCAL;
  switch (options.load) {
    case LoadMode::kDlopen:
      flags = RTLD_NOW | RTLD_GLOBAL;
      break;
    case LoadMode::kDlopenDev:
      name = "libcuda.so";
      break;
    case LoadMode::kAbsolute:
      name = options.library.c_str();
      break;
    case LoadMode::kDlopenLocal:
    case LoadMode::kGetProcAddress:
    case LoadMode::kGetProcAddressV1:
      break;
  }
  void* library = ::dlopen(name, flags);
  if (library == nullptr) return Fail("dlopen", ::dlerror());
  return library;
}

// Asks for everything as cudart does: one dlsym, the rest by name and version.
class ByProcAddress {
 public:
  static Result<ByProcAddress> Make(void* library, const Options& options) {
    ByProcAddress made;
    made.options_ = &options;
    const bool first = options.load == LoadMode::kGetProcAddressV1;
    const char* name = first ? "cuGetProcAddress" : "cuGetProcAddress_v2";
    void* symbol = ::dlsym(library, name);
    if (symbol == nullptr) return Fail("dlsym", std::string("the driver does not export ") + name);
    (first ? made.v1_ : made.v2_) = symbol;
    return made;
  }

  void* Find(const char* base) const {
    void* found = nullptr;
    const cuuint64_t flags =
        options_->per_thread_default ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    CUresult result;
    if (v1_ != nullptr) {
      const auto get = reinterpret_cast<decltype(&::cuGetProcAddress)>(v1_);
      result = get(base, &found, options_->api_version, flags);
    } else {
      const auto get = reinterpret_cast<decltype(&::cuGetProcAddress_v2)>(v2_);
      CUdriverProcAddressQueryResult status;
      result = get(base, &found, options_->api_version, flags, &status);
    }
    return result == CUDA_SUCCESS ? found : nullptr;
  }

 private:
  const Options* options_ = nullptr;
  void* v1_ = nullptr;
  void* v2_ = nullptr;
};

}  // namespace

Result<Driver> LoadDriver(const Options& options) {
  auto library = Open(options);
  if (!library) return std::unexpected(library.error());
  Driver driver;
  if (options.load == LoadMode::kGetProcAddress || options.load == LoadMode::kGetProcAddressV1) {
    auto get = ByProcAddress::Make(*library, options);
    if (!get) return std::unexpected(get.error());
#define GPULOAD_GET(symbol, base) \
  driver.symbol = reinterpret_cast<decltype(&::symbol)>(get->Find(#base));
    GPULOAD_DRIVER_FUNCTIONS(GPULOAD_GET)
#undef GPULOAD_GET
  } else {
#define GPULOAD_GET(symbol, base) \
  driver.symbol = reinterpret_cast<decltype(&::symbol)>(::dlsym(*library, #symbol));
    GPULOAD_DRIVER_FUNCTIONS(GPULOAD_GET)
#undef GPULOAD_GET
  }
  if (driver.cuInit == nullptr) return Fail("missing", "the driver has no cuInit");
  return driver;
}

Status Check(const Driver& driver, CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  if (driver.cuGetErrorName != nullptr) driver.cuGetErrorName(result, &name);
  const std::string code = name != nullptr ? name : "CUDA_ERROR_" + std::to_string(result);
  return Fail(code, what + " failed: " + code);
}

}  // namespace prorata::gpuload
