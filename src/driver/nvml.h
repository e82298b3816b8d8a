#pragma once

// What the agent asks of NVML: which devices there are, who holds how much of their memory, and who
// takes how much of their time.
//
// An interface, so that tests give the agent machines that do not exist. The real one loads
// libnvidia-ml.so.1 as find_driver.h says (PRORATA_DRIVER_DIR first) and never unloads it. Memory,
// Processes and TimeSamples may take any time, and are called by one thread at a time; the rest
// never blocks.

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/link_class.h"
#include "base/result.h"
#include "driver/pci_place.h"

namespace prorata::driver {

// What does not change while the driver is loaded; what is not known is empty.
struct DeviceFacts {
  std::string compute_capability = {};  // "9.0"
  std::string driver_version = {};      // "580.65.06"
  std::string pci_address = {};         // "0000:1a:00.0"
  PciPlace place = {};
};

struct NvmlDevice {
  std::string uuid;  // "GPU-8-4-4-4-12"
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;  // when NVML was opened
  // How it reaches each device, itself too, in their order; as it was when NVML was opened.
  std::vector<DeviceLink> links;
  DeviceFacts facts = {};
};

struct NvmlMemory {
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;
};

struct NvmlProcess {
  pid_t pid = 0;                       // in the namespace of whoever loaded the driver
  std::optional<uint64_t> used_bytes;  // absent: NVML knows the process, and not what it uses
};

// Of a process and a device: the part of some time before `time_us` in which its kernels ran.
struct NvmlTimeSample {
  pid_t pid = 0;
  uint64_t time_us = 0;  // by a clock of NVML's own
  uint32_t percent = 0;
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

  // The library that this is; "": none that a container could have.
  virtual std::string LibraryPath() const { return ""; }

  // Errors: "nvml", with the function and NVML's own words.
  virtual Result<NvmlMemory> Memory(size_t device) = 0;

  // Every process with memory on the device, once. Errors as above; a device that has no figures
  // per process (MIG, some virtual machines) answers an error.
  virtual Result<std::vector<NvmlProcess>> Processes(size_t device) = 0;

  // The samples after `since_us`, in no order; 0: all that NVML still has. An idle process has
  // none, and neither has one on a device without such figures, if that does not answer an error.
  virtual Result<std::vector<NvmlTimeSample>> TimeSamples(size_t device, uint64_t since_us) = 0;
};

// Loads and starts NVML. Errors: "no_nvml" (not found; says where it was looked for and what to
// do), "nvml" (it did not start, or shows no device).
Result<std::unique_ptr<Nvml>> OpenNvml();

}  // namespace prorata::driver
