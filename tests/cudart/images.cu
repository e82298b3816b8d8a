// What test_simgpu_images.py reads back from the images that nvcc makes of this.

struct Large {
  int words[500];
};

__device__ int table[4096];
__constant__ float constants[77];
__managed__ int managed[5];

extern "C" __global__ void several(float* out, int n, double factor, char letter) {
  for (int i = 0; i < n; ++i) {
    out[i] = table[i] * factor + letter + constants[i % 77] + managed[n % 5];
  }
}

extern "C" __global__ void takes_a_struct(Large large, short add, float* out) {
  out[threadIdx.x] = large.words[threadIdx.x] + add;
}

extern "C" __global__ void __launch_bounds__(256) shares(float* out) {
  __shared__ float shared[300];
  shared[threadIdx.x] = out[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = shared[255 - threadIdx.x];
}
