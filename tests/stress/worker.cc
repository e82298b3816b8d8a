#include "worker.h"

#include <dlfcn.h>

#include <cstdio>

namespace prorata::stress {

const Driver* LoadDriver(const char** missing) {
  static Driver driver;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *missing = ::dlerror();
    return nullptr;
  }
#define STRESS_FIND(name)                                                     \
  driver.name = reinterpret_cast<decltype(&::name)>(::dlsym(library, #name)); \
  if (driver.name == nullptr) {                                               \
    *missing = #name;                                                         \
    return nullptr;                                                           \
  }
  STRESS_DRIVER_FUNCTIONS(STRESS_FIND)
#undef STRESS_FIND
  return &driver;
}

bool Worker::Try(CUresult result, const char* what, std::initializer_list<CUresult> may) {
  if (result == CUDA_SUCCESS) return true;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    refused_ = true;
    return false;
  }
  for (const CUresult expected : may) {
    if (result == expected) return false;
  }
  Note(result, what);
  return false;
}

void Worker::Note(CUresult result, const char* what) {
  if (tally_.errors.fetch_add(1) != 0) return;
  const char* name = "?";
  driver.cuGetErrorName(result, &name);
  std::snprintf(tally_.first_error, sizeof tally_.first_error, "%s answered %s", what, name);
}

}  // namespace prorata::stress
