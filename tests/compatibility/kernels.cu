// What the exercises register with cudart. On the simulated GPU it takes time and computes nothing.
extern "C" __device__ int exercise_counter;
extern "C" __device__ int exercise_counter = 0;

extern "C" __global__ void exercise_scale(float* data, float factor, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= factor;
  if (i == 0) ++exercise_counter;
}
