#pragma once

// What the agent asks of NVML: which devices there are, and who holds how much of their memory.
//
// An interface, so that tests give the agent machines that do not exist. The real one loads
// libnvidia-ml.so.1 as find_driver.h says (PRORATA_DRIVER_DIR first) and never unloads it. Memory
// and Processes may take any time, and are called by one thread at a time; the rest never blocks.

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "protocol/link_class.h"

namespace prorata::driver {

struct NvmlDevice {
  std::string uuid;  // "GPU-8-4-4-4-12"
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;  // when NVML was opened
  // How it reaches each device, itself too, in their order; as it was when NVML was opened.
  std::vector<protocol::DeviceLink> links;
};

struct NvmlMemory {
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;
};

struct NvmlProcess {
  pid_t pid = 0;                       // in the namespace of whoever loaded the driver
  std::optional<uint64_t> used_bytes;  // absent: NVML knows the process, and not what it uses
};

class Nvml {
 public:
  virtual ~Nvml() = default;

  // All devices in NVML's order; their indices here are the indices below. The same for the whole
  // life of the object.
  virtual const std::vector<NvmlDevice>& Devices() const = 0;

  // The machine whose devices these are, for what there may be once a machine only: "" is the one
  // that this process runs on, others are simulated ones. Absent: one that nobody else can see.
  virtual std::optional<std::string> Machine() const { return std::nullopt; }

  // Errors: "nvml", with the function and NVML's own words.
  virtual Result<NvmlMemory> Memory(size_t device) = 0;

  // Every process with memory on the device, once. Errors as above; a device that has no figures
  // per process (MIG, some virtual machines) answers an error.
  virtual Result<std::vector<NvmlProcess>> Processes(size_t device) = 0;
};

// Loads and starts NVML. Errors: "no_nvml" (not found; says where it was looked for and what to
// do), "nvml" (it did not start, or shows no device).
Result<std::unique_ptr<Nvml>> OpenNvml();

}  // namespace prorata::driver
