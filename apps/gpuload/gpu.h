#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpuload/driver.h"
#include "apps/gpuload/options.h"

namespace prorata::gpuload {

// A device with its primary context, current in the thread that opened it.
struct Gpu {
  Driver driver;
  CUdevice device = 0;
  CUcontext context = nullptr;
  std::string name;
  std::string uuid;
  int driver_version = 0;
  int sm_count = 0;
};

// cuInit and the fork come first, then the context.
Result<Gpu> OpenGpu(const Options& options);

struct MemorySeen {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;         // cuMemGetInfo
  uint64_t device_total_bytes = 0;  // cuDeviceTotalMem
};
Result<MemorySeen> SeeMemory(const Gpu& gpu);

// What the child of a fork after cuInit met: CUDA does not work there, and must say so.
struct ForkedChild {
  bool done = false;
  int exit_status = 0;  // the CUresult its allocation got, or 128 + signal
};
ForkedChild TryInForkedChild(const Driver& driver);

// The kernel "busy" with its ring of stamps on the device. Launch() may be called from any thread.
class BusyKernel {
 public:
  static Result<BusyKernel> Make(const Gpu& gpu, const Options& options);

  Status Launch(CUstream stream) const { return Launch(stream, duration_ns_); }
  // `function`: which of Options::functions.
  Status Launch(CUstream stream, uint64_t duration_ns, size_t function = 0) const;
  // A collective: it ends together with the other launches of this number (not 0), in any process
  // and on any device, `size` in all. On the simulated GPU only.
  Status LaunchRendezvous(CUstream stream, uint64_t duration_ns, uint64_t number,
                          uint32_t size) const;

  struct Stamps {
    uint64_t launches = 0;
    uint64_t sum_ns = 0;                                 // of all launches
    std::vector<std::pair<uint64_t, uint64_t>> kernels;  // start, end; the ring's last ones
  };
  // After everything launched has completed.
  Result<Stamps> Read() const;

  const char* image() const { return image_; }

 private:
  Status LaunchFunction(CUfunction function, CUstream stream, uint64_t duration_ns, uint64_t number,
                        uint32_t size) const;

  const Gpu* gpu_ = nullptr;
  std::vector<CUfunction> functions_;
  CUfunction meet_ = nullptr;
  const char* image_ = "";
  unsigned blocks_ = 1;
  unsigned threads_ = 1;
  uint64_t duration_ns_ = 0;
  uint64_t capacity_ = 0;
  CUdeviceptr stamps_ = 0;
  CUdeviceptr counter_ = 0;
};

}  // namespace prorata::gpuload
