// Asks the CUDA runtime for 128 MiB at a time until refused; compiled without nvcc, against any
// cudart (static or shared, 12 or 13). Prints JSON: what it got, and with which error it ended.
//
//   fill [HOLD_SECONDS]

#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

// As cuda_runtime_api.h declares them, in 12 and in 13. PyPI's cudart 12 comes without some of the
// headers that its own include.
extern "C" {
typedef int cudaError_t;
constexpr cudaError_t cudaSuccess = 0;
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMalloc(void** address, size_t bytes);
const char* cudaGetErrorName(cudaError_t error);
}

int main(int argc, char** argv) {
  constexpr size_t kStepBytes = size_t{128} << 20;
  int version = 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  cudaRuntimeGetVersion(&version);
  const cudaError_t seen = cudaMemGetInfo(&free_bytes, &total_bytes);
  if (seen != cudaSuccess) {
    std::printf("{\"error\": \"%s\", \"runtime\": %d}\n", cudaGetErrorName(seen), version);
    return 1;
  }
  int allocations = 0;
  void* address = nullptr;
  cudaError_t result;
  while ((result = cudaMalloc(&address, kStepBytes)) == cudaSuccess) ++allocations;
  std::printf(
      "{\"runtime\": %d, \"free\": %zu, \"total\": %zu, \"allocations\": %d, "
      "\"allocated_bytes\": %zu, \"refused\": \"%s\"}\n",
      version, free_bytes, total_bytes, allocations, allocations * kStepBytes,
      cudaGetErrorName(result));
  std::fflush(stdout);
  if (argc > 1) ::sleep(static_cast<unsigned>(std::atoi(argv[1])));
  return 0;
}
