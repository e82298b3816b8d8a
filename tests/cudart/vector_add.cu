// A tour of the CUDA runtime, to see that NVIDIA's cudart works on the simulated GPU. Kernels of a
// fatbin compute nothing there, so only what the runtime itself moves is checked.
#include <cuda_runtime.h>

#include <cstdio>

#define CHECK(call)                                                                        \
  do {                                                                                     \
    const cudaError_t result = (call);                                                     \
    if (result != cudaSuccess) {                                                           \
      std::printf("line %d: %s: %s\n", __LINE__, #call, cudaGetErrorName(result));         \
      return 1;                                                                            \
    }                                                                                      \
  } while (false)
#define EXPECT(condition)                                                \
  do {                                                                   \
    if (!(condition)) {                                                  \
      std::printf("line %d: not so: %s\n", __LINE__, #condition);        \
      return 1;                                                          \
    }                                                                    \
  } while (false)

__device__ int g_counter;
__constant__ float g_table[16];

__global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i] + g_table[0];
  g_counter = 1;
}

int main() {
  constexpr int kCount = 1 << 20;
  constexpr size_t kBytes = kCount * sizeof(float);
  int runtime = 0;
  int devices = 0;
  CHECK(cudaRuntimeGetVersion(&runtime));
  CHECK(cudaGetDeviceCount(&devices));
  EXPECT(devices == 1);
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  EXPECT(properties.major == 9 && properties.multiProcessorCount == 132);

  size_t free_before = 0;
  size_t free_after = 0;
  size_t total = 0;
  CHECK(cudaMemGetInfo(&free_before, &total));
  float* a = nullptr;
  float* b = nullptr;
  float* c = nullptr;
  CHECK(cudaMalloc(&a, kBytes));
  CHECK(cudaMalloc(&b, kBytes));
  CHECK(cudaMalloc(&c, kBytes));
  CHECK(cudaMemGetInfo(&free_after, &total));
  EXPECT(free_before - free_after == 3 * kBytes);
  const float values[4] = {1, 2, 3, 4};
  CHECK(cudaMemset(a, 0, kBytes));
  CHECK(cudaMemcpy(a, values, sizeof(values), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpyToSymbol(g_table, values, sizeof(values)));
  float back[4] = {};
  CHECK(cudaMemcpyFromSymbol(back, g_table, sizeof(back)));
  EXPECT(back[3] == 4);
  add<<<kCount / 256, 256>>>(a, b, c, kCount);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());

  cudaStream_t stream;
  cudaEvent_t begin;
  cudaEvent_t end;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(begin, stream));
  add<<<kCount / 256, 256, 0, stream>>>(a, b, c, kCount);
  CHECK(cudaEventRecord(end, stream));
  CHECK(cudaStreamSynchronize(stream));
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, begin, end));
  EXPECT(ms > 0);

  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  add<<<kCount / 256, 256, 0, stream>>>(a, b, c, kCount);
  CHECK(cudaMemcpyAsync(b, a, kBytes, cudaMemcpyDeviceToDevice, stream));
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaMemcpy(back, b, sizeof(back), cudaMemcpyDeviceToHost));
  EXPECT(back[0] == 1 && back[3] == 4);

  void* pointer = nullptr;
  CHECK(cudaMallocAsync(&pointer, 1000, stream));
  CHECK(cudaFreeAsync(pointer, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaMallocHost(&pointer, 100));
  CHECK(cudaFreeHost(pointer));
  CHECK(cudaMallocManaged(&pointer, 100));
  *static_cast<int*>(pointer) = 5;
  CHECK(cudaFree(pointer));
  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, add));
  int blocks = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 0));
  EXPECT(blocks == 8);
  EXPECT(cudaMalloc(&pointer, size_t{1} << 50) == cudaErrorMemoryAllocation);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);

  CHECK(cudaDeviceReset());
  CHECK(cudaMalloc(&a, kBytes));
  CHECK(cudaFree(a));
  std::printf("runtime %d ok\n", runtime);
  return 0;
}
