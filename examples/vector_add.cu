// Adds two vectors on the GPU through the CUDA runtime, and checks the sum.
//
//   vector_add [--no-check] [ELEMENTS] [ROUNDS]
//
// --no-check: for a GPU that accepts kernels and does not compute (the simulated one).

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK_CUDA(call)                                                              \
  do {                                                                                \
    const cudaError_t result = (call);                                                \
    if (result != cudaSuccess) {                                                      \
      std::fprintf(stderr, "%s failed: %s\n", #call, cudaGetErrorString(result));     \
      return 1;                                                                       \
    }                                                                                 \
  } while (false)

__global__ void Add(const float* a, const float* b, float* sum, size_t count) {
  const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (i < count) sum[i] = a[i] + b[i];
}

int main(int argc, char** argv) {
  bool check = true;
  if (argc > 1 && std::strcmp(argv[1], "--no-check") == 0) {
    check = false;
    --argc;
    ++argv;
  }
  const size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{1} << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 10;
  const size_t bytes = count * sizeof(float);

  std::vector<float> a(count), b(count), sum(count);
  for (size_t i = 0; i < count; ++i) {
    a[i] = static_cast<float>(i % 1000);
    b[i] = static_cast<float>(2 * (i % 1000));
  }
  float *device_a, *device_b, *device_sum;
  CHECK_CUDA(cudaMalloc(&device_a, bytes));
  CHECK_CUDA(cudaMalloc(&device_b, bytes));
  CHECK_CUDA(cudaMalloc(&device_sum, bytes));
  CHECK_CUDA(cudaMemcpy(device_a, a.data(), bytes, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemcpy(device_b, b.data(), bytes, cudaMemcpyHostToDevice));
  const unsigned blocks = static_cast<unsigned>((count + 255) / 256);
  for (int round = 0; round < rounds; ++round) {
    Add<<<blocks, 256>>>(device_a, device_b, device_sum, count);
  }
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK_CUDA(cudaMemcpy(sum.data(), device_sum, bytes, cudaMemcpyDeviceToHost));
  size_t free_bytes, total_bytes;
  CHECK_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  CHECK_CUDA(cudaFree(device_a));
  CHECK_CUDA(cudaFree(device_b));
  CHECK_CUDA(cudaFree(device_sum));

  size_t wrong = 0;
  for (size_t i = 0; check && i < count; ++i) wrong += sum[i] != a[i] + b[i];
  std::printf("%zu elements, %d rounds, %zu of %zu bytes free%s\n", count, rounds, free_bytes,
              total_bytes, check ? wrong == 0 ? ", sum right" : ", sum WRONG" : "");
  return wrong == 0 ? 0 : 1;
}
