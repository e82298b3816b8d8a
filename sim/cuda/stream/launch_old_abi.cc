// The launches before cuLaunchKernel: shape, shared memory and parameters are set on the function
// first, and stay there.

#include <cstring>
#include <map>
#include <vector>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/module/function.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

struct Settings {
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  std::vector<char> parameters;
};

// Leaked, like the Driver. Under its mutex.
std::map<const void*, Settings>& AllSettings() {
  static auto* const all = new std::map<const void*, Settings>;
  return *all;
}

constexpr size_t kMaxParameterBytes = 4096;

template <typename Change>
CUresult Set(CUfunction handle, Change change) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  std::shared_ptr<Function> function;
  if (CUresult result = FindFunction(handle, &function)) return result;
  return change(&AllSettings()[handle]);
}

CUresult PutParameter(CUfunction handle, int offset, const void* data, size_t bytes) {
  if (offset < 0 || !data || static_cast<size_t>(offset) + bytes > kMaxParameterBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Set(handle, [&](Settings* settings) {
    const size_t end = static_cast<size_t>(offset) + bytes;
    if (settings->parameters.size() < end) settings->parameters.resize(end);
    std::memcpy(settings->parameters.data() + offset, data, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult LaunchGrid(CUfunction handle, int width, int height, CUstream stream) {
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  Settings settings;
  if (CUresult result = Set(handle, [&](Settings* set) { return settings = *set, CUDA_SUCCESS; })) {
    return result;
  }
  size_t bytes = settings.parameters.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, settings.parameters.data(),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  return cuLaunchKernel(handle, static_cast<unsigned>(width), static_cast<unsigned>(height), 1,
                        settings.block[0], settings.block[1], settings.block[2],
                        settings.shared_bytes, stream, nullptr, bytes > 0 ? extra : nullptr);
}

}  // namespace

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) {
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  return Set(hfunc, [&](Settings* settings) {
    settings->block[0] = static_cast<unsigned>(x);
    settings->block[1] = static_cast<unsigned>(y);
    settings->block[2] = static_cast<unsigned>(z);
    return CUDA_SUCCESS;
  });
}
CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes) {
  return Set(hfunc, [&](Settings* settings) {
    settings->shared_bytes = bytes;
    return CUDA_SUCCESS;
  });
}
CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes) {
  if (numbytes > kMaxParameterBytes) return CUDA_ERROR_INVALID_VALUE;
  return Set(hfunc, [&](Settings* settings) {
    settings->parameters.resize(numbytes);
    return CUDA_SUCCESS;
  });
}
CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned int value) {
  return PutParameter(hfunc, offset, &value, sizeof(value));
}
CUresult cuParamSetf(CUfunction hfunc, int offset, float value) {
  return PutParameter(hfunc, offset, &value, sizeof(value));
}
CUresult cuParamSetv(CUfunction hfunc, int offset, void* ptr, unsigned int numbytes) {
  return PutParameter(hfunc, offset, ptr, numbytes);
}
CUresult cuLaunch(CUfunction f) { return LaunchGrid(f, 1, 1, nullptr); }
CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
  return LaunchGrid(f, grid_width, grid_height, nullptr);
}
CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
  return LaunchGrid(f, grid_width, grid_height, hStream);
}
