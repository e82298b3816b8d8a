// Does what a framework's caching allocator does, through the CUDA runtime: takes memory of random
// sizes, and where it is refused frees a part of what it has and tries again. Compiled without
// nvcc, against any cudart; -DPROPERTIES names the runtime's own cudaGetDeviceProperties.
//
//   together SEED ROUNDS       prints JSON: the device's size as told twice, what it met
//
// With its context made it says "ready" and reads a byte: a share that is full refuses a context.

#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

// As cuda_runtime_api.h declares them, in 12 and in 13.
extern "C" {
typedef int cudaError_t;
constexpr cudaError_t cudaSuccess = 0;
constexpr cudaError_t cudaErrorMemoryAllocation = 2;
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMalloc(void** address, size_t bytes);
cudaError_t cudaFree(void* address);
cudaError_t cudaGetLastError();
cudaError_t PROPERTIES(void* properties, int device);
const char* cudaGetErrorName(cudaError_t error);
}

namespace {

// cudaDeviceProp begins with name[256], a UUID, a LUID and its mask; then comes totalGlobalMem.
constexpr size_t kTotalAt = 288;

[[noreturn]] void Fail(const char* what, cudaError_t error) {
  std::fprintf(stderr, "together: %s gave %s\n", what, cudaGetErrorName(error));
  std::exit(1);
}

void Must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) Fail(what, error);
}

// Null: refused, as out of memory, which is forgotten then.
void* TryAllocate(size_t bytes) {
  void* address = nullptr;
  const cudaError_t error = cudaMalloc(&address, bytes);
  if (error == cudaSuccess) return address;
  if (error != cudaErrorMemoryAllocation) Fail("cudaMalloc", error);
  cudaGetLastError();
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
  const int rounds = std::atoi(argv[2]);
  size_t free_bytes = 0, total_bytes = 0, properties_total = 0;
  alignas(16) char properties[4096] = {};
  Must(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  Must(PROPERTIES(properties, 0), "cudaGetDeviceProperties");
  std::memcpy(&properties_total, properties + kTotalAt, sizeof properties_total);

  std::puts("ready");
  std::fflush(stdout);
  char go = 0;
  if (::read(STDIN_FILENO, &go, 1) != 1) return 2;

  std::vector<void*> held;
  int refused = 0, recovered = 0;
  for (int round = 0; round < rounds; ++round) {
    const size_t bytes = 1 + random() % (size_t{64} << 20);
    void* address = TryAllocate(bytes);
    if (address == nullptr) {
      ++refused;
      for (size_t keep = held.size() / 2; held.size() > keep; held.pop_back()) {
        Must(cudaFree(held.back()), "cudaFree");
      }
      address = TryAllocate(bytes);
      if (address != nullptr) ++recovered;
    }
    if (address != nullptr) held.push_back(address);
  }
  for (void* address : held) Must(cudaFree(address), "cudaFree");
  std::printf("{\"total\": %zu, \"properties_total\": %zu, \"refused\": %d, \"recovered\": %d}\n",
              total_bytes, properties_total, refused, recovered);
  return 0;
}
