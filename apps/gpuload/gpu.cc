#include "apps/gpuload/gpu.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

extern "C" {
extern const unsigned char gpuload_busy_host[];
extern const unsigned char gpuload_busy_ptx[];
}

namespace prorata::gpuload {
namespace {

std::string FormatUuid(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char byte[3];
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += byte;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

// One block that fills an SM for each of them: kernels of one process then follow each other.
unsigned BlocksThatFill(const Gpu& gpu, unsigned block_threads) {
  constexpr unsigned kThreadsPerSm = 2048;
  const unsigned per_sm = std::max(1u, kThreadsPerSm / block_threads);
  return static_cast<unsigned>(std::max(1, gpu.sm_count)) * per_sm;
}

}  // namespace

Result<Gpu> OpenGpu(const Options& options) {
  auto driver = LoadDriver(options);
  if (!driver) return std::unexpected(driver.error());
  Gpu gpu;
  gpu.driver = *driver;
  GPULOAD_CALL(gpu.driver, cuInit, 0);
  GPULOAD_CALL(gpu.driver, cuDriverGetVersion, &gpu.driver_version);
  GPULOAD_CALL(gpu.driver, cuDeviceGet, &gpu.device, options.device);
  char name[128] = {};
  GPULOAD_CALL(gpu.driver, cuDeviceGetName, name, sizeof name, gpu.device);
  gpu.name = name;
  CUuuid uuid = {};
  GPULOAD_CALL(gpu.driver, cuDeviceGetUuid_v2, &uuid, gpu.device);
  gpu.uuid = FormatUuid(uuid);
  GPULOAD_CALL(gpu.driver, cuDeviceGetAttribute, &gpu.sm_count,
               CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu.device);
  GPULOAD_CALL(gpu.driver, cuDevicePrimaryCtxRetain, &gpu.context, gpu.device);
  GPULOAD_CALL(gpu.driver, cuCtxSetCurrent, gpu.context);
  return gpu;
}

Result<MemorySeen> SeeMemory(const Gpu& gpu) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  size_t device_bytes = 0;
  GPULOAD_CALL(gpu.driver, cuMemGetInfo_v2, &free_bytes, &total_bytes);
  GPULOAD_CALL(gpu.driver, cuDeviceTotalMem_v2, &device_bytes, gpu.device);
  return MemorySeen{free_bytes, total_bytes, device_bytes};
}

ForkedChild TryInForkedChild(const Driver& driver) {
  const pid_t child = ::fork();
  if (child == 0) {
    CUdeviceptr address = 0;
    const CUresult result = driver.cuMemAlloc_v2(&address, 1 << 20);
    ::_exit(static_cast<int>(result) & 127);
  }
  ForkedChild outcome;
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return outcome;
  outcome.done = true;
  outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

Result<BusyKernel> BusyKernel::Make(const Gpu& gpu, const Options& options) {
  BusyKernel kernel;
  kernel.gpu_ = &gpu;
  kernel.duration_ns_ = options.kernel_us * 1000;
  kernel.capacity_ = options.stamp_capacity;
  kernel.threads_ = options.block_threads;
  const double part = BlocksThatFill(gpu, kernel.threads_) * options.sm_fraction;
  kernel.blocks_ = options.blocks > 0 ? options.blocks : std::max(1u, static_cast<unsigned>(part));
  const Driver& driver = gpu.driver;
  if (driver.cuModuleLoadData == nullptr) return Fail("missing", "no cuModuleLoadData");
  CUmodule module = nullptr;
  kernel.image_ = "host";
  // A real driver refuses the host object, by one of several codes; the simulated one takes it.
  if (driver.cuModuleLoadData(&module, gpuload_busy_host) != CUDA_SUCCESS) {
    kernel.image_ = "ptx";
    GPULOAD_CALL(driver, cuModuleLoadData, &module, gpuload_busy_ptx);
  }
  kernel.functions_.resize(options.functions);
  GPULOAD_CALL(driver, cuModuleGetFunction, kernel.functions_.data(), module, "busy");
  for (size_t i = 1; i < kernel.functions_.size(); ++i) {
    CUmodule another = nullptr;
    const bool host = kernel.image_[0] == 'h';
    GPULOAD_CALL(driver, cuModuleLoadData, &another, host ? gpuload_busy_host : gpuload_busy_ptx);
    GPULOAD_CALL(driver, cuModuleGetFunction, &kernel.functions_[i], another, "busy");
  }
  if (options.collective_every > 0) {
    if (driver.cuModuleGetFunction(&kernel.meet_, module, "meet") != CUDA_SUCCESS) {
      return Fail("collective",
                  "--collective-every: kernels that wait for each other are there on the simulated "
                  "GPU only");
    }
  }
  GPULOAD_CALL(driver, cuMemAlloc_v2, &kernel.counter_, 4096);
  GPULOAD_CALL(driver, cuMemsetD32_v2, kernel.counter_, 0, 1024);
  GPULOAD_CALL(driver, cuMemAlloc_v2, &kernel.stamps_, 16 * kernel.capacity_);
  return kernel;
}

Status BusyKernel::Launch(CUstream stream, uint64_t duration_ns, size_t function) const {
  return LaunchFunction(functions_[function], stream, duration_ns, 0, 0);
}

Status BusyKernel::LaunchRendezvous(CUstream stream, uint64_t duration_ns, uint64_t number,
                                    uint32_t size) const {
  return LaunchFunction(meet_, stream, duration_ns, number, size);
}

// "meet" takes two parameters more than "busy", which has no use for them.
Status BusyKernel::LaunchFunction(CUfunction function, CUstream stream, uint64_t duration_ns,
                                  uint64_t number, uint32_t size) const {
  uint64_t ns = duration_ns;
  CUdeviceptr stamps = stamps_;
  uint64_t capacity = capacity_;
  CUdeviceptr counter = counter_;
  void* parameters[] = {&ns, &stamps, &capacity, &counter, &number, &size};
  GPULOAD_CALL(gpu_->driver, cuLaunchKernel, function, blocks_, 1, 1, threads_, 1, 1, 0, stream,
               parameters, nullptr);
  return {};
}

Result<BusyKernel::Stamps> BusyKernel::Read() const {
  uint64_t counter[2] = {};
  GPULOAD_CALL(gpu_->driver, cuMemcpyDtoH_v2, counter, counter_, sizeof counter);
  Stamps stamps;
  stamps.launches = counter[0];
  stamps.sum_ns = counter[1];
  stamps.kernels.resize(std::min(counter[0], capacity_));
  if (!stamps.kernels.empty()) {
    static_assert(sizeof(stamps.kernels[0]) == 16);
    GPULOAD_CALL(gpu_->driver, cuMemcpyDtoH_v2, stamps.kernels.data(), stamps_,
                 16 * stamps.kernels.size());
  }
  std::sort(stamps.kernels.begin(), stamps.kernels.end());
  return stamps;
}

}  // namespace prorata::gpuload
