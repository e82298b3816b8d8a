#include "bench/gpu_facts/bench.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "bench/gpu_facts/figure.h"

namespace prorata::gpufacts {

gpuload::Options DriverOptions(const Options& options) {
  gpuload::Options driver;
  driver.device = options.device;
  if (!options.library.empty()) {
    driver.load = gpuload::LoadMode::kAbsolute;
    driver.library = options.library;
  }
  return driver;
}

Result<gpuload::BusyKernel> MakeKernel(const gpuload::Gpu& gpu, uint64_t kernel_us, bool fill,
                                       uint64_t ring) {
  gpuload::Options options;
  options.kernel_us = kernel_us;
  options.stamp_capacity = ring;
  if (!fill) {
    options.blocks = 1;
    options.block_threads = 32;
  }
  return gpuload::BusyKernel::Make(gpu, options);
}

Result<Stream> Stream::Make(const gpuload::Gpu& gpu) {
  CUstream stream = nullptr;
  GPULOAD_CALL(gpu.driver, cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
  return Stream(&gpu, stream);
}

Stream::Stream(Stream&& other) noexcept
    : gpu_(other.gpu_), stream_(std::exchange(other.stream_, nullptr)) {}

Stream::~Stream() {
  if (stream_ != nullptr && gpu_->driver.cuStreamDestroy_v2 != nullptr) {
    gpu_->driver.cuStreamDestroy_v2(stream_);
  }
}

Status Stream::Synchronize() const {
  GPULOAD_CALL(gpu_->driver, cuStreamSynchronize, stream_);
  return {};
}

double ClockCostNs() {
  std::vector<double> costs(1000);
  for (double& cost : costs) cost = HostNs([] {});
  std::sort(costs.begin(), costs.end());
  return Percentile(costs, 0.5);
}

}  // namespace prorata::gpufacts
