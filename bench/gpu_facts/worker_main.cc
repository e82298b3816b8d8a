// The worker's side of worker.h.

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <vector>

#include "bench/gpu_facts/worker.h"

namespace prorata::gpufacts {
namespace {

void Print(const std::string& line) { std::cout << line << std::endl; }

bool Told() {
  std::string line;
  return static_cast<bool>(std::getline(std::cin, line));
}

Status HoldContext(const gpuload::Gpu& gpu) {
  Print("context");
  if (!Told()) return {};
  auto kernel = MakeKernel(gpu, 10, true);
  if (!kernel) return std::unexpected(kernel.error());
  GPUFACTS_TRY(kernel->Launch(nullptr));
  GPULOAD_CALL(gpu.driver, cuCtxSynchronize);
  Print("kernel");
  Told();
  return {};
}

// Keeps the device in work: chunks of kernels go to several streams in turn, and a chunk is
// launched when the one kChunks before it is done. Several streams, because one alone leaves the
// device idle for a moment after each kernel, and an idle device is given to the other process
// before the slice is over.
class SteadyLoad {
 public:
  SteadyLoad(const gpuload::Gpu& gpu, const gpuload::BusyKernel& kernel)
      : gpu_(gpu), kernel_(kernel) {}

  Status Prepare() {
    for (size_t i = 0; i < kStreams; ++i) {
      auto stream = Stream::Make(gpu_);
      if (!stream) return std::unexpected(stream.error());
      streams_.push_back(std::move(*stream));
    }
    for (CUevent& event : done_) {
      GPULOAD_CALL(gpu_.driver, cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    }
    return LaunchChunk(0);
  }

  Status Run(double seconds) {
    const auto end = HostClock::now() + std::chrono::duration<double>(seconds);
    for (size_t chunk = 1; HostClock::now() < end; ++chunk) {
      if (chunk >= kChunks) {
        GPULOAD_CALL(gpu_.driver, cuEventSynchronize, done_[chunk % kChunks]);
      }
      GPUFACTS_TRY(LaunchChunk(chunk));
    }
    GPULOAD_CALL(gpu_.driver, cuCtxSynchronize);
    return {};
  }

 private:
  static constexpr size_t kStreams = 8;
  static constexpr size_t kChunks = 32;
  static constexpr size_t kKernels = 8;

  Status LaunchChunk(size_t chunk) {
    CUstream stream = streams_[chunk % kStreams].get();
    for (size_t i = 0; i < kKernels; ++i) GPUFACTS_TRY(kernel_.Launch(stream));
    GPULOAD_CALL(gpu_.driver, cuEventRecord, done_[chunk % kChunks], stream);
    return {};
  }

  const gpuload::Gpu& gpu_;
  const gpuload::BusyKernel& kernel_;
  std::vector<Stream> streams_;
  CUevent done_[kChunks] = {};
};

Status TakeTurns(const gpuload::Gpu& gpu, const Options& options) {
  // Twice what fits in the time: the ring must not wrap.
  const double kernels = options.slice_seconds * 1e6 / static_cast<double>(options.slice_kernel_us);
  const auto ring = static_cast<uint64_t>(2 * kernels) + 4096;
  auto kernel = MakeKernel(gpu, options.slice_kernel_us, true, ring);
  if (!kernel) return std::unexpected(kernel.error());
  SteadyLoad load(gpu, *kernel);
  GPUFACTS_TRY(load.Prepare());
  GPULOAD_CALL(gpu.driver, cuCtxSynchronize);
  Print("ready");
  if (!Told()) return {};
  GPUFACTS_TRY(load.Run(options.slice_seconds));
  auto stamps = kernel->Read();
  if (!stamps) return std::unexpected(stamps.error());
  Print("stamps " + std::to_string(stamps->kernels.size()));
  std::cout.write(reinterpret_cast<const char*>(stamps->kernels.data()),
                  static_cast<std::streamsize>(16 * stamps->kernels.size()));
  std::cout.flush();
  return {};
}

Status Work(const Options& options) {
  auto gpu = gpuload::OpenGpu(DriverOptions(options));
  if (!gpu) return std::unexpected(gpu.error());
  if (options.worker == "context") return HoldContext(*gpu);
  return TakeTurns(*gpu, options);
}

}  // namespace

int RunWorker(const Options& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (auto ok = Work(options); !ok) {
    std::cerr << "gpu-facts: the second process (" << options.worker << "): " << ok.error().message
              << "\n";
    return 1;
  }
  return 0;
}

}  // namespace prorata::gpufacts
