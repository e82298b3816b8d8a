// A program that waits for the end of its standard input, initialises the driver, and says how long
// that took in microseconds: many of them begin at the same moment. It ends with its descriptor 3,
// for what it costs to end is not measured beside others that begin.

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace {

using Init = int (*)(unsigned int);

Init Load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  const auto init = library != nullptr ? reinterpret_cast<Init>(dlsym(library, "cuInit")) : nullptr;
  if (init == nullptr) std::fprintf(stderr, "start_together: %s\n", dlerror());
  return init;
}

}  // namespace

// With an argument what is measured begins with the loading of the driver; else it is found before.
int main(int count, char**) {
  const bool loads = count > 1;
  Init init = loads ? nullptr : Load();
  if (!loads && init == nullptr) return 1;
  char none;
  std::puts("ready");
  std::fflush(stdout);
  if (read(0, &none, 1) != 0) return 1;
  const auto begin = std::chrono::steady_clock::now();
  if (loads && (init = Load()) == nullptr) return 1;
  const int result = init(0);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  std::printf("%d %.1f\n", result, took.count());
  std::fflush(stdout);
  return read(3, &none, 1) == 0 ? 0 : 1;
}
