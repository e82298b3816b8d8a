#include "tests/stream_fuzz/driver.h"

#include <dlfcn.h>

namespace prorata::stream_fuzz {

const Driver* LoadDriver(const char** missing) {
  static Driver driver;
  *missing = "libcuda.so.1";
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return nullptr;
#define STREAM_FUZZ_FIND(field, symbol)                                              \
  driver.field = reinterpret_cast<decltype(driver.field)>(::dlsym(library, symbol)); \
  if (driver.field == nullptr) {                                                     \
    *missing = symbol;                                                               \
    return nullptr;                                                                  \
  }
#define STREAM_FUZZ_ONE(name) STREAM_FUZZ_FIND(name, #name)
#define STREAM_FUZZ_BOTH(name) \
  STREAM_FUZZ_FIND(name, #name) STREAM_FUZZ_FIND(name##_ptsz, #name "_ptsz")
  STREAM_FUZZ_FUNCTIONS(STREAM_FUZZ_ONE)
  STREAM_FUZZ_STREAM_FUNCTIONS(STREAM_FUZZ_BOTH)
  return &driver;
}

}  // namespace prorata::stream_fuzz
