// What the exercises register with cudart. On the simulated GPU it takes time and computes nothing.
extern "C" __device__ int zoo_counter;
extern "C" __device__ int zoo_counter = 0;

extern "C" __global__ void zoo_scale(float* data, float factor, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= factor;
  if (i == 0) ++zoo_counter;
}
