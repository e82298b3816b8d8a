// A program that is linked against libcuda.so.1, as few are: it must meet the client library too.
// Prints JSON of what it sees, and fills its share with 16 MiB at a time when asked: --fill.

#include <cstdio>
#include <cstring>

#include "generated/cuda_abi.h"

int main(int argc, char** argv) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS) result = cuDeviceGet(&device, 0);
  if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, device);
  if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
  if (result == CUDA_SUCCESS) result = cuMemGetInfo_v2(&free_bytes, &total_bytes);
  if (result != CUDA_SUCCESS) {
    std::printf("{\"error\": %d}\n", static_cast<int>(result));
    return 1;
  }
  size_t filled = 0;
  CUdeviceptr address = 0;
  const bool fill = argc > 1 && std::strcmp(argv[1], "--fill") == 0;
  while (fill && (result = cuMemAlloc_v2(&address, 16 << 20)) == CUDA_SUCCESS) filled += 16 << 20;
  std::printf("{\"free\": %zu, \"total\": %zu, \"allocated_bytes\": %zu, \"refused\": %d}\n",
              free_bytes, total_bytes, filled, static_cast<int>(result));
  return 0;
}
