#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "apps/gpuload/gpu.h"
#include "apps/gpuload/options.h"
#include "base/result.h"

namespace prorata::gpufacts {

inline constexpr uint64_t kKiB = 1 << 10;
inline constexpr uint64_t kMiB = 1 << 20;

using HostClock = std::chrono::steady_clock;

struct Options {
  std::string library;  // the driver's path; empty: as the loader finds it
  int device = 0;
  double seconds = 55;            // no section goes on after that; those not begun are skipped
  uint64_t slice_kernel_us = 50;  // of the two processes that take turns
  double slice_seconds = 1;
  std::string only;  // one section; empty: all
  // Set when the program runs itself: what this process is to do ("context", "slice").
  std::string worker;
};

gpuload::Options DriverOptions(const Options& options);

// What every section measures on: this process's primary context, and the time that is left.
struct Bench {
  Options options;
  gpuload::Gpu gpu;
  HostClock::time_point end;

  bool TimeIsUp() const { return HostClock::now() >= end; }
};

// The busy kernel with its own ring of `ring` stamps; `fill`: on all SMs, else one small block.
Result<gpuload::BusyKernel> MakeKernel(const gpuload::Gpu& gpu, uint64_t kernel_us, bool fill,
                                       uint64_t ring = 1024);

// A stream of its own, not ordered with the default one; gone with this object.
class Stream {
 public:
  static Result<Stream> Make(const gpuload::Gpu& gpu);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&&) = delete;
  ~Stream();

  CUstream get() const { return stream_; }
  Status Synchronize() const;

 private:
  Stream(const gpuload::Gpu* gpu, CUstream stream) : gpu_(gpu), stream_(stream) {}
  const gpuload::Gpu* gpu_;
  CUstream stream_;
};

// Host time of one `call`, in ns, less what reading the clock costs.
double ClockCostNs();
template <typename Call>
double HostNs(Call&& call) {
  const auto begin = HostClock::now();
  call();
  return std::chrono::duration<double, std::nano>(HostClock::now() - begin).count();
}

}  // namespace prorata::gpufacts

// Returns the error of a Status, or of a Result that is not needed, to the caller.
#define GPUFACTS_TRY(expression)                                 \
  do {                                                           \
    if (auto gpufacts_status = (expression); !gpufacts_status) { \
      return std::unexpected(gpufacts_status.error());           \
    }                                                            \
  } while (false)
