#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/gpuload/gpu.h"
#include "apps/gpuload/options.h"

namespace prorata::gpuload {

struct KernelOutcome {
  uint64_t launches = 0;       // kernels, those in graphs counted one by one
  uint64_t captures = 0;       // of --capture-beside: ended well
  uint64_t captures_lost = 0;  // ended with an error
  double wall_s = 0;
  // Of --every-us: when each request was done, since the begin, and how long after it was due; in
  // seconds and microseconds of the options' time.
  struct Request {
    double done_s;
    double latency_us;
  };
  std::vector<Request> requests;
  std::string first_error;
};

// Launches `kernel` in Options::threads threads as the options say, for Options::seconds or
// Options::kernels each, or until `stop`; all has completed when it returns.
KernelOutcome LaunchKernels(const Gpu& gpu, const BusyKernel& kernel, const Options& options,
                            const std::atomic<bool>& stop);

}  // namespace prorata::gpuload
