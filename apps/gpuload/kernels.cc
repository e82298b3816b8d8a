#include "apps/gpuload/kernels.h"

#include <sys/prctl.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace prorata::gpuload {
namespace {

using SteadyClock = std::chrono::steady_clock;

class KernelRun {
 public:
  KernelRun(const Gpu& gpu, const BusyKernel& kernel, const Options& options,
            const std::atomic<bool>& stop)
      : gpu_(gpu), kernel_(kernel), options_(options), stop_(stop) {
    const std::chrono::duration<double> length(options.seconds);
    end_ = SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(length);
  }

  void LaunchThread() { Note(Launch()); }
  void CaptureThread() { Note(CaptureAgainAndAgain()); }
  void LaunchersEnded() { launchers_ended_ = true; }
  void Finish() { Note(Check(gpu_.driver, gpu_.driver.cuCtxSynchronize(), "cuCtxSynchronize")); }
  KernelOutcome outcome() const { return outcome_; }

 private:
  struct Lane {
    CUstream stream = nullptr;
    CUgraphExec graph = nullptr;
  };

  bool Over(uint64_t launched) const {
    if (stop_) return true;
    if (options_.kernels > 0 && launched >= options_.kernels) return true;
    return options_.seconds > 0 && SteadyClock::now() >= end_;
  }

  Result<CUgraph> Capture(CUstream stream, CUstreamCaptureMode mode, uint32_t kernels) {
    const Driver& driver = gpu_.driver;
    GPULOAD_CALL(driver, cuStreamBeginCapture_v2, stream, mode);
    Status launched;
    for (uint32_t i = 0; i < kernels && launched; ++i) launched = kernel_.Launch(stream);
    CUgraph graph = nullptr;
    GPULOAD_CALL(driver, cuStreamEndCapture, stream, &graph);
    if (!launched) return std::unexpected(launched.error());
    return graph;
  }

  Result<Lane> MakeLane() {
    const Driver& driver = gpu_.driver;
    Lane lane;
    GPULOAD_CALL(driver, cuStreamCreateWithPriority, &lane.stream, CU_STREAM_NON_BLOCKING,
                 options_.priority);
    if (options_.graph == 0) return lane;
    auto graph = Capture(lane.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, options_.graph);
    if (!graph) return std::unexpected(graph.error());
    GPULOAD_CALL(driver, cuGraphInstantiateWithFlags, &lane.graph, *graph, 0);
    GPULOAD_CALL(driver, cuGraphDestroy, *graph);
    return lane;
  }

  Status Launch() {
    const Driver& driver = gpu_.driver;
    GPULOAD_CALL(driver, cuCtxSetCurrent, gpu_.context);
    // The gap is part of the load: the kernel's 50 us of timer slack would lengthen it.
    ::prctl(PR_SET_TIMERSLACK, 1);
    std::vector<Lane> lanes;
    for (uint32_t i = 0; i < options_.streams; ++i) {
      auto lane = MakeLane();
      if (!lane) return std::unexpected(lane.error());
      lanes.push_back(*lane);
    }
    ++launchers_ready_;
    uint64_t launched = 0;
    while (!Over(launched)) {
      for (uint32_t i = 0; i < options_.per_sync; ++i) {
        if (options_.kernels > 0 && launched >= options_.kernels) break;
        const Lane& lane = lanes[i % lanes.size()];
        if (lane.graph != nullptr) {
          GPULOAD_CALL(driver, cuGraphLaunch, lane.graph, lane.stream);
          launched += options_.graph;
        } else {
          if (auto ok = kernel_.Launch(lane.stream); !ok) return ok;
          ++launched;
        }
      }
      if (options_.capture_beside) {
        // Synchronising would itself invalidate the other thread's capture: keep pace by the clock.
        std::this_thread::sleep_for(
            std::chrono::microseconds(options_.kernel_us * options_.per_sync));
      } else {
        for (const Lane& lane : lanes) GPULOAD_CALL(driver, cuStreamSynchronize, lane.stream);
      }
      if (options_.gap_us > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(options_.gap_us));
      }
    }
    std::lock_guard lock(mutex_);
    outcome_.launches += launched;
    return {};
  }

  // A global-mode capture forbids unsafe calls (allocation, query, synchronisation) in every thread
  // of the process while it is open, and such a call, though another thread's, invalidates it. The
  // launchers make none; whether somebody makes some for them is what this finds out.
  Status CaptureAgainAndAgain() {
    const Driver& driver = gpu_.driver;
    GPULOAD_CALL(driver, cuCtxSetCurrent, gpu_.context);
    CUstream stream = nullptr;
    GPULOAD_CALL(driver, cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    while (!launchers_ended_ && launchers_ready_ < options_.threads) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    while (!launchers_ended_) {
      GPULOAD_CALL(driver, cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
      bool launched = true;
      for (int i = 0; i < 10; ++i) {
        launched = launched && kernel_.Launch(stream).has_value();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      CUgraph graph = nullptr;
      const CUresult ended = driver.cuStreamEndCapture(stream, &graph);
      const bool well = launched && ended == CUDA_SUCCESS && graph != nullptr;
      {
        std::lock_guard lock(mutex_);
        ++(well ? outcome_.captures : outcome_.captures_lost);
      }
      if (graph != nullptr) GPULOAD_CALL(driver, cuGraphDestroy, graph);
    }
    return {};
  }

  void Note(const Status& status) {
    if (status) return;
    std::lock_guard lock(mutex_);
    if (outcome_.first_error.empty()) outcome_.first_error = status.error().message;
  }

  const Gpu& gpu_;
  const BusyKernel& kernel_;
  const Options& options_;
  const std::atomic<bool>& stop_;
  SteadyClock::time_point end_;
  std::atomic<uint32_t> launchers_ready_ = 0;  // have made what a capture would forbid to make
  std::atomic<bool> launchers_ended_ = false;
  std::mutex mutex_;  // guards outcome_; no driver call is made under it
  KernelOutcome outcome_;
};

}  // namespace

KernelOutcome LaunchKernels(const Gpu& gpu, const BusyKernel& kernel, const Options& options,
                            const std::atomic<bool>& stop) {
  KernelRun run(gpu, kernel, options, stop);
  const auto begin = SteadyClock::now();
  std::jthread capturer;
  if (options.capture_beside) capturer = std::jthread([&run] { run.CaptureThread(); });
  std::vector<std::jthread> launchers;
  for (uint32_t i = 0; i < options.threads; ++i) {
    launchers.emplace_back([&run] { run.LaunchThread(); });
  }
  launchers.clear();
  run.LaunchersEnded();
  if (capturer.joinable()) capturer.join();
  run.Finish();
  KernelOutcome outcome = run.outcome();
  outcome.wall_s = std::chrono::duration<double>(SteadyClock::now() - begin).count();
  return outcome;
}

}  // namespace prorata::gpuload
