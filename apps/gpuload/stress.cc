#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "apps/gpuload/memory.h"

namespace prorata::gpuload {
namespace {

using SteadyClock = std::chrono::steady_clock;

class StressRun {
 public:
  StressRun(const Gpu& gpu, const Options& options, const std::atomic<bool>& stop)
      : gpu_(gpu), options_(options), stop_(stop) {
    const std::chrono::duration<double> length(options.seconds);
    end_ = SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(length);
  }

  void Thread(uint32_t index) {
    if (gpu_.driver.cuCtxSetCurrent(gpu_.context) != CUDA_SUCCESS) return Note("cuCtxSetCurrent");
    std::mt19937_64 random(options_.seed * 1000 + index);
    std::vector<Allocation> held;
    while (!stop_ && SteadyClock::now() < end_) {
      if (held.empty() || random() % 100 < 55) {
        AllocateOne(random, &held);
      } else {
        FreeOne(random() % held.size(), &held);
      }
    }
    while (!held.empty()) FreeOne(held.size() - 1, &held);
  }

  StressOutcome outcome() const { return outcome_; }

 private:
  void AllocateOne(std::mt19937_64& random, std::vector<Allocation>* held) {
    // Sizes over the whole range of magnitudes: a byte, a page, a slab, many slabs.
    const uint64_t magnitude = uint64_t{1} << (random() % 40);
    const uint64_t bytes = 1 + random() % std::min(magnitude, options_.stress_max_bytes);
    auto made = Allocate(gpu_, options_.allocator, bytes);
    std::lock_guard lock(mutex_);
    if (made) {
      held->push_back(*made);
      ++outcome_.allocations;
      in_use_bytes_ += bytes;
      outcome_.peak_bytes = std::max(outcome_.peak_bytes, in_use_bytes_);
      return;
    }
    if (made.error().code == "CUDA_ERROR_OUT_OF_MEMORY") {
      ++outcome_.refused;
    } else if (outcome_.first_error.empty()) {
      outcome_.first_error = made.error().message;
    }
  }

  void FreeOne(size_t index, std::vector<Allocation>* held) {
    const Allocation allocation = (*held)[index];
    (*held)[index] = held->back();
    held->pop_back();
    const Status freed = Free(gpu_, options_.allocator, allocation);
    std::lock_guard lock(mutex_);
    in_use_bytes_ -= allocation.bytes;
    ++outcome_.frees;
    if (!freed && outcome_.first_error.empty()) outcome_.first_error = freed.error().message;
  }

  void Note(const std::string& error) {
    std::lock_guard lock(mutex_);
    outcome_.first_error = error;
  }

  const Gpu& gpu_;
  const Options& options_;
  const std::atomic<bool>& stop_;
  SteadyClock::time_point end_;
  std::mutex mutex_;  // guards what follows; no driver call is made under it
  StressOutcome outcome_;
  uint64_t in_use_bytes_ = 0;
};

}  // namespace

StressOutcome Stress(const Gpu& gpu, const Options& options, const std::atomic<bool>& stop) {
  StressRun run(gpu, options, stop);
  std::vector<std::jthread> threads;
  for (uint32_t i = 0; i < options.threads; ++i) {
    threads.emplace_back([&run, i] { run.Thread(i); });
  }
  threads.clear();
  return run.outcome();
}

}  // namespace prorata::gpuload
