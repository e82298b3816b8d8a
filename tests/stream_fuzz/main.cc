// stream_programs --kernels FILE --seed N [--count N]: runs random programs of streams (program.h),
// one after the other, and prints what each observed. What two runs print is equal but for lines
// that begin with '#'.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/stream_fuzz/program.h"

namespace prorata::stream_fuzz {
namespace {

int Fail(const char* what, int code) {
  std::fprintf(stderr, "stream_programs: %s (%d)\n", what, code);
  return 1;
}

int Main(const char* kernels, uint64_t seed, uint64_t count) {
  const char* missing = nullptr;
  Device device;
  device.driver = LoadDriver(&missing);
  if (device.driver == nullptr) return Fail(missing, 0);
  const Driver& driver = *device.driver;
  CUdevice gpu = 0;
  CUmodule module = nullptr;
  CUresult result = driver.cuInit(0);
  if (result == CUDA_SUCCESS) result = driver.cuDeviceGet(&gpu, 0);
  if (result == CUDA_SUCCESS) result = driver.cuDevicePrimaryCtxRetain(&device.context, gpu);
  if (result == CUDA_SUCCESS) result = driver.cuCtxSetCurrent(device.context);
  if (result == CUDA_SUCCESS) result = driver.cuModuleLoad(&module, kernels);
  if (result == CUDA_SUCCESS) result = driver.cuModuleGetFunction(&device.mix, module, "mix");
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return Fail("out of memory", 0);
  if (result != CUDA_SUCCESS) return Fail("no device", static_cast<int>(result));
  for (uint64_t i = 0; i < count; ++i) {
    std::printf("seed %lu\n", static_cast<unsigned long>(seed + i));
    std::fflush(stdout);
    for (const std::string& line : RunProgram(device, seed + i)) std::puts(line.c_str());
    std::fflush(stdout);
  }
  std::puts("end");
  return 0;
}

}  // namespace
}  // namespace prorata::stream_fuzz

int main(int argc, char** argv) {
  const char* kernels = "";
  uint64_t seed = 1;
  uint64_t count = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--kernels") == 0) kernels = argv[i + 1];
    if (std::strcmp(argv[i], "--seed") == 0) seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--count") == 0) count = std::strtoull(argv[i + 1], nullptr, 10);
  }
  return prorata::stream_fuzz::Main(kernels, seed, count);
}
