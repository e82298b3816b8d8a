#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/result.h"
#include "sim/core/faults.h"
#include "sim/core/model/rules.h"

namespace prorata::simgpu {

inline constexpr int kMaxDevices = 16;

// One simulated GPU. "Assumed" in a comment means nobody measured it yet: bench/gpu-facts on a GPU
// is what will replace it. All durations are in model time.
struct DeviceConfig {
  std::string name = "Simulated GPU";
  // Empty: made from the index, so that every machine has the same ones.
  std::string uuid;
  std::string pci_bus_id;  // "00000000:01:00.0"; empty: made from the index

  uint64_t memory_bytes = 16 * kGiB;  // assumed: small enough to fill in a test
  uint32_t sm_count = 132;            // H100/H200 data sheet (SXM)
  int compute_major = 9;              // H100/H200 (Hopper), CUDA programming guide
  int compute_minor = 0;
  uint64_t context_bytes = 512 * kMiB;    // H100: 518, and 520 from the first kernel on
  uint64_t module_bytes = 0;              // not measured: what the code of a module takes
  bool multicast = false;                 // H100/H200 (SXM) with NVSwitch: true
  uint64_t slab_bytes = 2 * kMiB;         // H100: the same, for every allocation
  uint64_t pool_chunk_bytes = 32 * kMiB;  // H100: the same

  int64_t time_slice_ns = 2 * kNsPerMs;          // H100: 2.0 ms
  int64_t switch_cost_ns = 100 * kNsPerUs;       // H100: 140 us when drained, 240 in a kernel
  int64_t launch_latency_ns = 3 * kNsPerUs;      // H100: 2.3 us from kernel to kernel
  uint64_t h2d_bytes_per_s = 50'000'000'000;     // H100: 54, pinned memory
  uint64_t d2h_bytes_per_s = 50'000'000'000;     // H100: 55
  uint64_t d2d_bytes_per_s = 2'000'000'000'000;  // H100: 1.2 TB/s copied, as much read as written
};

// How two devices reach each other.
enum class LinkType : uint8_t {
  kHost,        // through the host's memory only
  kPcieSwitch,  // peer to peer, over the PCIe links that also lead to the host
  kNvlink,      // peer to peer, over links of their own
};

// Their common ancestor on the PCIe bus, with the values of NVML's nvmlGpuTopologyLevel_t.
enum class Topology : uint8_t {
  kSingle = 10,
  kMultiple = 20,
  kHostBridge = 30,
  kNode = 40,
  kSystem = 50,
};

inline constexpr int kMaxNvlinks = 18;  // NVML_NVLINK_MAX_LINKS

struct LinkConfig {
  int a = 0;  // devices; a < b
  int b = 0;
  LinkType type = LinkType::kHost;
  uint64_t bytes_per_s = 0;  // each direction; 0: what the way over the host gives
  int nvlinks = 0;
  Topology topology = Topology::kSystem;

  bool peer_access() const { return type != LinkType::kHost; }
};

// The machine that the processes of one state folder share.
struct MachineConfig {
  int driver_version = 13000;  // CUDA 13.0, the headers that spec/ was imported from
  // One simulated nanosecond takes so many real ones.
  double dilation = 1.0;
  // Not measured: what the first cuInit of a process takes before it does anything here.
  int64_t init_ns = 0;
  std::vector<DeviceConfig> devices = {DeviceConfig{}};
  std::vector<LinkConfig> links;  // pairs that are not in it go over the host
  BrokenRules broken;             // tests only
  std::vector<FaultConfig> faults;

  const LinkConfig& LinkBetween(int a, int b) const;
  // Of copies from one device to another.
  uint64_t BytesPerSecond(int from, int to) const;

  bool Broken(Rule rule) const { return broken[static_cast<size_t>(rule)]; }
};

// Reads a machine.toml. `origin` names it in errors ("FILE: devices[1].memory: ..."). Unknown keys
// are errors, since a misspelled setting would silently simulate something else. Fills in what is
// made from the index.
Result<MachineConfig> ParseMachineConfig(std::string_view text, std::string_view origin);

// The built-in machine: one device with the defaults above.
MachineConfig DefaultMachineConfig();

// The machine this process is to attach to: the file that PRORATA_SIM_MACHINE names, else
// machine.toml beside the loaded library that contains this code, else the built-in one.
Result<MachineConfig> FindMachineConfig();

// Of the shared state: `state` beside the library, PRORATA_SIM_STATE, /dev/shm/prorata-sim-UID.
std::string FindStateFolder();

// Every setting in a fixed order, one "key = value" per line: what two attachers must agree on.
std::string CanonicalText(const MachineConfig& config);

}  // namespace prorata::simgpu
