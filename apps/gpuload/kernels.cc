#include "apps/gpuload/kernels.h"

#include <sys/prctl.h>

#include <chrono>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace prorata::gpuload {
namespace {

using SteadyClock = std::chrono::steady_clock;

SteadyClock::duration Real(const Options& options, double seconds) {
  return std::chrono::duration_cast<SteadyClock::duration>(
      std::chrono::duration<double>(seconds * options.dilation));
}

// Which kernels one thread launches, and how long each is to take.
class Kernels {
 public:
  struct Next {
    size_t function;
    uint64_t ns;
  };
  Kernels(const Options& options, uint64_t thread)
      : options_(options), random_(options.seed * 1000 + thread) {
    std::mt19937_64 of_all_threads(options.seed);
    for (uint32_t i = 0; options.functions > 1 && i < options.functions; ++i) {
      function_ns_.push_back(DrawNs(of_all_threads));
    }
  }

  Next TakeNext() {
    if (function_ns_.empty()) return {0, DrawNs(random_)};
    const size_t function =
        std::uniform_int_distribution<size_t>(0, function_ns_.size() - 1)(random_);
    return {function, function_ns_[function]};
  }

 private:
  uint64_t DrawNs(std::mt19937_64& random) const {
    if (!options_.kernel_choice_us.empty()) {
      std::uniform_int_distribution<size_t> any(0, options_.kernel_choice_us.size() - 1);
      return options_.kernel_choice_us[any(random)] * 1000;
    }
    if (options_.kernel_most_us == 0) return options_.kernel_us * 1000;
    std::uniform_int_distribution<uint64_t> range(options_.kernel_us * 1000,
                                                  options_.kernel_most_us * 1000);
    return range(random);
  }

  const Options& options_;
  std::mt19937_64 random_;
  std::vector<uint64_t> function_ns_;  // empty: there is one, and each launch takes its own
};

// When requests of one thread's open loop are due.
class Arrivals {
 public:
  Arrivals(const Options& options, uint64_t thread)
      : options_(options), random_(options.seed * 1000 + 500 + thread) {}

  // Sleeps until the next is due; false: `end` comes first.
  bool Await(SteadyClock::time_point end) {
    due_ = next_;
    if (options_.seconds > 0 && due_ >= end) return false;
    std::this_thread::sleep_until(due_);
    std::exponential_distribution<double> gap(1);
    const double every_s = static_cast<double>(options_.every_us) / 1e6;
    next_ += Real(options_, every_s * (options_.poisson ? gap(random_) : 1));
    return true;
  }
  SteadyClock::time_point due() const { return due_; }

 private:
  const Options& options_;
  std::mt19937_64 random_;
  SteadyClock::time_point next_ = SteadyClock::now();
  SteadyClock::time_point due_;
};

class KernelRun {
 public:
  KernelRun(const Gpu& gpu, const BusyKernel& kernel, const Options& options,
            const std::atomic<bool>& stop)
      : gpu_(gpu), kernel_(kernel), options_(options), stop_(stop) {
    begin_ = SteadyClock::now();
    end_ = begin_ + Real(options, options.seconds);
  }

  void LaunchThread(uint64_t number) { Note(Launch(number)); }
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

  Result<CUgraph> Capture(CUstream stream, CUstreamCaptureMode mode, uint32_t count,
                          Kernels& kernels) {
    const Driver& driver = gpu_.driver;
    GPULOAD_CALL(driver, cuStreamBeginCapture_v2, stream, mode);
    Status launched;
    for (uint32_t i = 0; i < count && launched; ++i) {
      const Kernels::Next next = kernels.TakeNext();
      launched = kernel_.Launch(stream, next.ns, next.function);
    }
    CUgraph graph = nullptr;
    GPULOAD_CALL(driver, cuStreamEndCapture, stream, &graph);
    if (!launched) return std::unexpected(launched.error());
    return graph;
  }

  Result<Lane> MakeLane(Kernels& kernels) {
    const Driver& driver = gpu_.driver;
    Lane lane;
    GPULOAD_CALL(driver, cuStreamCreateWithPriority, &lane.stream, CU_STREAM_NON_BLOCKING,
                 options_.priority);
    if (options_.graph == 0) return lane;
    auto graph = Capture(lane.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, options_.graph, kernels);
    if (!graph) return std::unexpected(graph.error());
    GPULOAD_CALL(driver, cuGraphInstantiateWithFlags, &lane.graph, *graph, 0);
    GPULOAD_CALL(driver, cuGraphDestroy, *graph);
    return lane;
  }

  // The launch number `index` of its thread.
  Status LaunchOne(const Lane& lane, uint64_t index, Kernels::Next next) {
    const uint64_t every = options_.collective_every;
    if (every == 0 || (index + 1) % every != 0) {
      return kernel_.Launch(lane.stream, next.ns, next.function);
    }
    const uint64_t number = (uint64_t{options_.collective_job} << 40) | ((index + 1) / every);
    return kernel_.LaunchRendezvous(lane.stream, next.ns, number, options_.collective_size);
  }

  // One round of launches; how many kernels.
  Result<uint64_t> LaunchRound(const std::vector<Lane>& lanes, uint64_t launched,
                               Kernels& kernels) {
    const Driver& driver = gpu_.driver;
    uint64_t count = 0;
    // Without synchronisations a round is one launch on each stream.
    const size_t launches = options_.per_sync > 0 ? options_.per_sync : lanes.size();
    for (size_t i = 0; i < launches; ++i) {
      if (options_.kernels > 0 && launched + count >= options_.kernels) break;
      const Lane& lane = lanes[i % lanes.size()];
      if (lane.graph != nullptr) {
        GPULOAD_CALL(driver, cuGraphLaunch, lane.graph, lane.stream);
        count += options_.graph;
      } else {
        if (auto ok = LaunchOne(lane, launched + count, kernels.TakeNext()); !ok) {
          return std::unexpected(ok.error());
        }
        ++count;
      }
    }
    return count;
  }

  Status EndRound(const std::vector<Lane>& lanes) {
    const Driver& driver = gpu_.driver;
    if (options_.capture_beside) {
      // Synchronising would itself invalidate the other thread's capture: keep pace by the clock.
      std::this_thread::sleep_for(
          std::chrono::microseconds(options_.kernel_us * options_.per_sync));
    } else if (options_.per_sync > 0) {
      for (const Lane& lane : lanes) GPULOAD_CALL(driver, cuStreamSynchronize, lane.stream);
    }
    if (options_.gap_us > 0) {
      std::this_thread::sleep_for(Real(options_, static_cast<double>(options_.gap_us) / 1e6));
    }
    return {};
  }

  void NoteRequest(SteadyClock::time_point due) {
    const auto simulated_s = [this](SteadyClock::duration real) {
      return std::chrono::duration<double>(real).count() / options_.dilation;
    };
    const auto now = SteadyClock::now();
    std::lock_guard lock(mutex_);
    outcome_.requests.push_back({simulated_s(now - begin_), simulated_s(now - due) * 1e6});
  }

  Status Launch(uint64_t number) {
    const Driver& driver = gpu_.driver;
    Kernels kernels(options_, number);
    GPULOAD_CALL(driver, cuCtxSetCurrent, gpu_.context);
    // The gap is part of the load: the kernel's 50 us of timer slack would lengthen it.
    ::prctl(PR_SET_TIMERSLACK, 1);
    std::vector<Lane> lanes;
    for (uint32_t i = 0; i < options_.streams; ++i) {
      auto lane = MakeLane(kernels);
      if (!lane) return std::unexpected(lane.error());
      lanes.push_back(*lane);
    }
    ++launchers_ready_;
    uint64_t launched = 0;
    Arrivals arrivals(options_, number);
    while (!Over(launched)) {
      if (options_.every_us > 0 && !arrivals.Await(end_)) break;
      auto round = LaunchRound(lanes, launched, kernels);
      if (!round) return std::unexpected(round.error());
      launched += *round;
      if (auto ok = EndRound(lanes); !ok) return ok;
      if (options_.every_us > 0) NoteRequest(arrivals.due());
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
  SteadyClock::time_point begin_;
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
    launchers.emplace_back([&run, i] { run.LaunchThread(i); });
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
