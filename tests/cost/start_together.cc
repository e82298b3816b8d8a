// A program that waits for the end of its standard input, initialises the driver, and says how long
// that took in microseconds, in all and of a processor: many of them begin at the same moment. It
// ends with its descriptor 3, for what it costs to end is not measured beside others that begin.

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace {

double ProcessorUs() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

}  // namespace

int main() {
  using Init = int (*)(unsigned int);
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  // Found, so that no loader's work is in what is measured.
  const auto init = library != nullptr ? reinterpret_cast<Init>(dlsym(library, "cuInit")) : nullptr;
  if (init == nullptr) return std::fprintf(stderr, "start_together: %s\n", dlerror());
  char none;
  std::puts("ready");
  std::fflush(stdout);
  if (read(0, &none, 1) != 0) return 1;
  const double processor_begin = ProcessorUs();
  const auto begin = std::chrono::steady_clock::now();
  const int result = init(0);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  std::printf("%d %.1f %.1f\n", result, took.count(), ProcessorUs() - processor_begin);
  std::fflush(stdout);
  return read(3, &none, 1) == 0 ? 0 : 1;
}
