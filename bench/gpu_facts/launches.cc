#include <cstdint>

#include "bench/gpu_facts/bench.h"
#include "bench/gpu_facts/figure.h"
#include "bench/gpu_facts/sections.h"
#include "bench/gpu_facts/timeline.h"

namespace prorata::gpufacts {
namespace {

// Launches of a kernel that does nothing, with a synchronisation (untimed) before any queue fills.
Result<nlohmann::json> LaunchCost(const Bench& bench, const gpuload::BusyKernel& empty,
                                  const Stream& stream) {
  constexpr int kWarmUp = 200;
  constexpr int kLaunches = 2000;
  constexpr int kPerSync = 100;
  const double clock_ns = ClockCostNs();
  std::vector<double> samples;
  Status status;
  for (int i = 0; i < kWarmUp + kLaunches && !bench.TimeIsUp(); ++i) {
    const double ns = HostNs([&] { status = empty.Launch(stream.get()); });
    GPUFACTS_TRY(status);
    if (i >= kWarmUp) samples.push_back(ns - clock_ns);
    if (i % kPerSync == kPerSync - 1) GPUFACTS_TRY(stream.Synchronize());
  }
  GPUFACTS_TRY(stream.Synchronize());
  return Figure("ns", std::move(samples));
}

Result<nlohmann::json> RoundTrip(const Bench& bench, const gpuload::BusyKernel& empty,
                                 const Stream& stream) {
  std::vector<double> samples;
  Status status;
  for (int i = 0; i < 500 && !bench.TimeIsUp(); ++i) {
    const double ns = HostNs([&] {
      status = empty.Launch(stream.get());
      if (status) status = stream.Synchronize();
    });
    GPUFACTS_TRY(status);
    samples.push_back(ns / 1e3);
  }
  return Figure("us", std::move(samples));
}

// Behind a kernel that holds the stream, launches return at once until the queue is full; that one
// returns when the kernel ends. Far more than a scheduling hiccup, far less than the kernel:
constexpr double kBlockedNs = 100e6;
constexpr uint64_t kHolderUs = 500'000;

// Launches that were taken before one blocked; 0 when none did.
Result<uint64_t> DepthOnce(const gpuload::BusyKernel& holder, const gpuload::BusyKernel& empty,
                           const Stream& stream) {
  constexpr uint64_t kMost = 100'000;
  const auto begin = HostClock::now();
  GPUFACTS_TRY(holder.Launch(stream.get()));
  uint64_t depth = 0;
  Status status;
  for (uint64_t taken = 0; taken < kMost; ++taken) {
    const double ns = HostNs([&] { status = empty.Launch(stream.get()); });
    GPUFACTS_TRY(status);
    if (ns > kBlockedNs) {
      depth = taken;
      break;
    }
    // From here on a blocked launch could no longer be told from a slow one.
    if (HostClock::now() - begin > std::chrono::microseconds(kHolderUs / 2)) break;
  }
  GPUFACTS_TRY(stream.Synchronize());
  return depth;
}

Result<nlohmann::json> Depth(const Bench& bench, const gpuload::BusyKernel& empty,
                             const Stream& stream) {
  auto holder = MakeKernel(bench.gpu, kHolderUs, false);
  if (!holder) return std::unexpected(holder.error());
  std::vector<double> samples;
  for (int i = 0; i < 3 && !bench.TimeIsUp(); ++i) {
    auto depth = DepthOnce(*holder, empty, stream);
    if (!depth) return std::unexpected(depth.error());
    if (*depth > 0) samples.push_back(static_cast<double>(*depth));
  }
  nlohmann::json figure = Figure("launches", samples);
  if (samples.empty()) figure["note"] = "no launch blocked while the stream was held";
  return figure;
}

}  // namespace

Result<nlohmann::json> MeasureLaunches(const Bench& bench) {
  auto stream = Stream::Make(bench.gpu);
  if (!stream) return std::unexpected(stream.error());
  auto empty = MakeKernel(bench.gpu, 0, false);
  if (!empty) return std::unexpected(empty.error());
  nlohmann::json facts;
  auto figure = LaunchCost(bench, *empty, *stream);
  if (!figure) return figure;
  facts["launch"] = *figure;
  figure = RoundTrip(bench, *empty, *stream);
  if (!figure) return figure;
  facts["round_trip"] = *figure;
  figure = Depth(bench, *empty, *stream);
  if (!figure) return figure;
  facts["depth"] = *figure;
  return facts;
}

Result<nlohmann::json> MeasureKernelGap(const Bench& bench) {
  constexpr int kKernels = 1000;
  auto stream = Stream::Make(bench.gpu);
  if (!stream) return std::unexpected(stream.error());
  nlohmann::json facts;
  std::vector<Stamp> all;
  // Long enough that the host launches the next before the last has ended.
  constexpr uint64_t kKernelUs = 20;
  for (const bool fill : {false, true}) {
    auto kernel = MakeKernel(bench.gpu, kKernelUs, fill, kKernels);
    if (!kernel) return std::unexpected(kernel.error());
    for (int i = 0; i < kKernels; ++i) GPUFACTS_TRY(kernel->Launch(stream->get()));
    GPUFACTS_TRY(stream->Synchronize());
    auto stamps = kernel->Read();
    if (!stamps) return std::unexpected(stamps.error());
    facts[fill ? "full_device" : "one_block"] = Figure("ns", Gaps(stamps->kernels));
    all.insert(all.end(), stamps->kernels.begin(), stamps->kernels.end());
  }
  facts["kernel_us"] = kKernelUs;
  facts["device_clock_step_ns"] = ClockStep(all);
  return facts;
}

}  // namespace prorata::gpufacts
