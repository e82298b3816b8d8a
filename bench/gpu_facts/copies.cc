#include <algorithm>
#include <cstdint>

#include "bench/gpu_facts/bench.h"
#include "bench/gpu_facts/figure.h"
#include "bench/gpu_facts/sections.h"

namespace prorata::gpufacts {
namespace {

constexpr uint64_t kBufferBytes = 256 * kMiB;
constexpr double kCopyMs = 5;

// Pinned host memory and two device buffers of kBufferBytes.
class Buffers {
 public:
  explicit Buffers(const gpuload::Driver& driver) : driver_(driver) {}
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    if (host != nullptr) driver_.cuMemFreeHost(host);
    if (device != 0) driver_.cuMemFree_v2(device);
    if (other != 0) driver_.cuMemFree_v2(other);
  }
  Status Allocate() {
    if (driver_.cuMemFreeHost == nullptr) return Fail("missing", "the driver has no cuMemFreeHost");
    GPULOAD_CALL(driver_, cuMemHostAlloc, &host, kBufferBytes, 0);
    GPULOAD_CALL(driver_, cuMemAlloc_v2, &device, kBufferBytes);
    GPULOAD_CALL(driver_, cuMemAlloc_v2, &other, kBufferBytes);
    return {};
  }

  void* host = nullptr;
  CUdeviceptr device = 0;
  CUdeviceptr other = 0;

 private:
  const gpuload::Driver& driver_;
};

enum class Direction { kToDevice, kToHost, kOnDevice };

class CopyBench {
 public:
  CopyBench(const Bench& bench, const Buffers& buffers, const Stream& copies, const Stream& kernels)
      : bench_(bench), buffers_(buffers), copies_(copies), kernels_(kernels) {}

  Status Copy(Direction direction, uint64_t bytes) const {
    const gpuload::Driver& driver = bench_.gpu.driver;
    CUstream stream = copies_.get();
    switch (direction) {
      case Direction::kToDevice:
        GPULOAD_CALL(driver, cuMemcpyHtoDAsync_v2, buffers_.device, buffers_.host, bytes, stream);
        return {};
      case Direction::kToHost:
        GPULOAD_CALL(driver, cuMemcpyDtoHAsync_v2, buffers_.host, buffers_.device, bytes, stream);
        return {};
      case Direction::kOnDevice:
        GPULOAD_CALL(driver, cuMemcpyDtoDAsync_v2, buffers_.other, buffers_.device, bytes, stream);
        return {};
    }
    return {};
  }

  // Host time in ms from the submission of a copy, a kernel, or both, until all is done.
  Result<double> TimeMs(uint64_t bytes, Direction direction,
                        const gpuload::BusyKernel* kernel) const {
    Status status;
    const double ns = HostNs([&] {
      if (kernel != nullptr) status = kernel->Launch(kernels_.get());
      if (status && bytes > 0) status = Copy(direction, bytes);
      if (status && kernel != nullptr) status = kernels_.Synchronize();
      if (status && bytes > 0) status = copies_.Synchronize();
    });
    if (!status) return std::unexpected(status.error());
    return ns / 1e6;
  }

  Result<std::vector<double>> Times(int count, uint64_t bytes, Direction direction,
                                    const gpuload::BusyKernel* kernel) const {
    std::vector<double> times;
    for (int i = 0; i < count && !bench_.TimeIsUp(); ++i) {
      auto ms = TimeMs(bytes, direction, kernel);
      if (!ms) return std::unexpected(ms.error());
      times.push_back(*ms);
    }
    if (times.empty()) return Fail("time", "no time was left");
    return times;
  }

 private:
  const Bench& bench_;
  const Buffers& buffers_;
  const Stream& copies_;
  const Stream& kernels_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Percentile(values, 0.5);
}

// With `bytes_per_ms`, the bandwidth that is found.
Result<nlohmann::json> Bandwidth(const CopyBench& copies, Direction direction,
                                 double* bytes_per_ms) {
  constexpr uint64_t kBytes = 64 * kMiB;
  if (auto warm = copies.TimeMs(kBytes, direction, nullptr); !warm) {
    return std::unexpected(warm.error());
  }
  auto times = copies.Times(8, kBytes, direction, nullptr);
  if (!times) return std::unexpected(times.error());
  *bytes_per_ms = static_cast<double>(kBytes) / Median(*times);
  std::vector<double> rates;
  for (const double ms : *times) rates.push_back(static_cast<double>(kBytes) / ms / 1e6);
  return Figure("GB/s", std::move(rates));
}

Result<nlohmann::json> Overlap(const Bench& bench, const CopyBench& copies, double bytes_per_ms) {
  constexpr int kSamples = 20;
  const auto wanted = static_cast<uint64_t>(bytes_per_ms * kCopyMs);
  const uint64_t bytes = std::clamp<uint64_t>(wanted, kMiB, kBufferBytes);
  auto copy_ms = copies.Times(kSamples, bytes, Direction::kToDevice, nullptr);
  if (!copy_ms) return std::unexpected(copy_ms.error());
  auto kernel = MakeKernel(bench.gpu, static_cast<uint64_t>(kCopyMs * 1000), true);
  if (!kernel) return std::unexpected(kernel.error());
  auto kernel_ms = copies.Times(kSamples, 0, Direction::kToDevice, &*kernel);
  if (!kernel_ms) return std::unexpected(kernel_ms.error());
  auto both_ms = copies.Times(kSamples, bytes, Direction::kToDevice, &*kernel);
  if (!both_ms) return std::unexpected(both_ms.error());
  const double longer_ms = std::max(Median(*copy_ms), Median(*kernel_ms));
  std::vector<double> ratios;
  for (const double ms : *both_ms) ratios.push_back(ms / longer_ms);
  return nlohmann::json{{"bytes", bytes},
                        {"copy_alone", Figure("ms", *copy_ms)},
                        {"kernel_alone", Figure("ms", *kernel_ms)},
                        {"together", Figure("ms", *both_ms)},
                        // 1: they ran beside each other entirely; 2: one after the other.
                        {"together_to_longer", Figure("ratio", ratios)}};
}

}  // namespace

Result<nlohmann::json> MeasureCopies(const Bench& bench) {
  auto copy_stream = Stream::Make(bench.gpu);
  if (!copy_stream) return std::unexpected(copy_stream.error());
  auto kernel_stream = Stream::Make(bench.gpu);
  if (!kernel_stream) return std::unexpected(kernel_stream.error());
  Buffers buffers(bench.gpu.driver);
  GPUFACTS_TRY(buffers.Allocate());
  const CopyBench copies(bench, buffers, *copy_stream, *kernel_stream);
  nlohmann::json facts;
  double unused = 0;
  double to_device_bytes_per_ms = 0;
  auto figure = Bandwidth(copies, Direction::kToDevice, &to_device_bytes_per_ms);
  if (!figure) return figure;
  facts["to_device"] = *figure;
  figure = Bandwidth(copies, Direction::kToHost, &unused);
  if (!figure) return figure;
  facts["to_host"] = *figure;
  figure = Bandwidth(copies, Direction::kOnDevice, &unused);
  if (!figure) return figure;
  facts["on_device"] = *figure;
  figure = Overlap(bench, copies, to_device_bytes_per_ms);
  if (!figure) return figure;
  facts["overlap"] = *figure;
  return facts;
}

}  // namespace prorata::gpufacts
