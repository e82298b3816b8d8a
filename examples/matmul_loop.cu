// Multiplies matrices again and again through cuBLAS, and prints the rate.
//
//   matmul_loop [SECONDS] [SIZE]

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#define CHECK_CUDA(call)                                                            \
  do {                                                                              \
    const cudaError_t result = (call);                                              \
    if (result != cudaSuccess) {                                                    \
      std::fprintf(stderr, "%s failed: %s\n", #call, cudaGetErrorString(result));   \
      return 1;                                                                     \
    }                                                                               \
  } while (false)

#define CHECK_CUBLAS(call)                                                          \
  do {                                                                              \
    const cublasStatus_t result = (call);                                           \
    if (result != CUBLAS_STATUS_SUCCESS) {                                          \
      std::fprintf(stderr, "%s failed: cuBLAS status %d\n", #call, int(result));    \
      return 1;                                                                     \
    }                                                                               \
  } while (false)

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5.0;
  const int size = argc > 2 ? std::atoi(argv[2]) : 2048;
  constexpr int kProductsPerSync = 8;
  const size_t bytes = sizeof(float) * size * size;
  float *a, *b, *c;
  CHECK_CUDA(cudaMalloc(&a, bytes));
  CHECK_CUDA(cudaMalloc(&b, bytes));
  CHECK_CUDA(cudaMalloc(&c, bytes));
  CHECK_CUDA(cudaMemset(a, 0, bytes));
  CHECK_CUDA(cudaMemset(b, 0, bytes));
  cublasHandle_t handle;
  CHECK_CUBLAS(cublasCreate(&handle));
  const float one = 1.0f, zero = 0.0f;

  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double elapsed_s = 0;
  long products = 0;
  while (elapsed_s < seconds) {
    for (int i = 0; i < kProductsPerSync; ++i, ++products) {
      CHECK_CUBLAS(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, size, size, size, &one, a, size, b,
                               size, &zero, c, size));
    }
    CHECK_CUDA(cudaDeviceSynchronize());
    elapsed_s = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  CHECK_CUBLAS(cublasDestroy(handle));
  const double operations = 2.0 * size * size * size * products;
  std::printf("%ld products of %d x %d in %.2f s: %.2f TFLOP/s\n", products, size, size, elapsed_s,
              operations / elapsed_s / 1e12);
  return 0;
}
