#include "driver/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "driver/find_driver.h"
#include "driver/nvml_links.h"
#include "driver/sim_machine.h"
#include "generated/nvml_abi.h"

namespace prorata::driver {
namespace {

// NVML_VALUE_NOT_AVAILABLE of nvml.h: a figure that the driver cannot give.
constexpr uint64_t kNotAvailable = ~uint64_t{0};
constexpr unsigned kFirstProcesses = 64;
constexpr unsigned kMaxProcesses = 16384;

struct Functions {
  decltype(&nvmlInit_v2) init = nullptr;
  decltype(&nvmlErrorString) error_string = nullptr;
  decltype(&nvmlDeviceGetCount_v2) count = nullptr;
  decltype(&nvmlDeviceGetHandleByIndex_v2) handle = nullptr;
  decltype(&nvmlDeviceGetUUID) uuid = nullptr;
  decltype(&nvmlDeviceGetName) name = nullptr;
  decltype(&nvmlDeviceGetMemoryInfo) memory = nullptr;
  // _v3 (driver 510) and _v2 (driver 460) fill the same struct.
  decltype(&nvmlDeviceGetComputeRunningProcesses_v3) processes = nullptr;
  decltype(&nvmlDeviceGetProcessUtilization) utilization = nullptr;  // null: it has none
  LinkFunctions links;
  // Null where it has none: then less is known of the devices.
  decltype(&nvmlDeviceGetCudaComputeCapability) compute_capability = nullptr;
  decltype(&nvmlSystemGetDriverVersion) driver_version = nullptr;
};

template <typename Function>
bool Look(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

class RealNvml final : public Nvml {
 public:
  static Result<std::unique_ptr<Nvml>> Open();

  const std::vector<NvmlDevice>& Devices() const override { return devices_; }
  std::optional<std::string> Machine() const override { return machine_; }
  std::string LibraryPath() const override { return path_; }
  Result<NvmlMemory> Memory(size_t device) override;
  Result<std::vector<NvmlProcess>> Processes(size_t device) override;
  Result<std::vector<NvmlTimeSample>> TimeSamples(size_t device, uint64_t since_us) override;

 private:
  std::unexpected<Error> Failed(const char* function, nvmlReturn_t result) const {
    std::string message = std::string(function) + " of NVML answered ";
    message += std::to_string(static_cast<int>(result));
    if (f_.error_string != nullptr) message += std::string(" (") + f_.error_string(result) + ")";
    return Fail("nvml", message);
  }
  Status ListDevices();
  DeviceFacts FactsOf(nvmlDevice_t device) const;

  Functions f_;
  std::vector<nvmlDevice_t> handles_;
  std::vector<NvmlDevice> devices_;
  std::string machine_;
  std::string path_;
};

Result<std::unique_ptr<Nvml>> RealNvml::Open() {
  auto search = std::make_unique<Search>();
  StartSearch(search.get(), kNvmlName, FileIdentity{});
  void* library = OpenDriver(search.get());
  if (library == nullptr) {
    return Fail("no_nvml",
                std::string("no NVIDIA driver was found: looked for ") + kNvmlName + " (" +
                    search->tried +
                    "); install the driver, or set PRORATA_DRIVER_DIR to the folder of another "
                    "(the simulated GPU's is build/sim)");
  }
  auto nvml = std::make_unique<RealNvml>();
  nvml->path_ = search->path;
  nvml->machine_ = SimMachineFile(nvml->path_).empty() ? "" : SimStateFolder();
  Functions& f = nvml->f_;
  const bool all =
      Look(library, "nvmlInit_v2", f.init) && Look(library, "nvmlDeviceGetCount_v2", f.count) &&
      Look(library, "nvmlDeviceGetHandleByIndex_v2", f.handle) &&
      Look(library, "nvmlDeviceGetUUID", f.uuid) && Look(library, "nvmlDeviceGetName", f.name) &&
      Look(library, "nvmlDeviceGetMemoryInfo", f.memory) &&
      (Look(library, "nvmlDeviceGetComputeRunningProcesses_v3", f.processes) ||
       Look(library, "nvmlDeviceGetComputeRunningProcesses_v2", f.processes));
  Look(library, "nvmlErrorString", f.error_string);
  Look(library, "nvmlDeviceGetProcessUtilization", f.utilization);
  LinkFunctions& links = f.links;
  Look(library, "nvmlDeviceGetTopologyCommonAncestor", links.common_ancestor);
  Look(library, "nvmlDeviceGetP2PStatus", links.p2p_status);
  Look(library, "nvmlDeviceGetPciInfo_v3", links.pci_info);
  Look(library, "nvmlDeviceGetCudaComputeCapability", f.compute_capability);
  Look(library, "nvmlSystemGetDriverVersion", f.driver_version);
  Look(library, "nvmlDeviceGetNvLinkState", links.nvlink_state);
  Look(library, "nvmlDeviceGetNvLinkRemoteDeviceType", links.nvlink_remote_type);
  Look(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", links.nvlink_remote_pci);
  if (!all) {
    return Fail("nvml", std::string("'") + search->path +
                            "' lacks a function that prorata needs; its driver is older than 460 "
                            "or it is not NVIDIA's library");
  }
  if (const nvmlReturn_t result = f.init(); result != NVML_SUCCESS) {
    return nvml->Failed("nvmlInit", result);
  }
  if (auto ok = nvml->ListDevices(); !ok) return std::unexpected(ok.error());
  return nvml;
}

Status RealNvml::ListDevices() {
  unsigned count = 0;
  if (const auto result = f_.count(&count); result != NVML_SUCCESS) {
    return Failed("nvmlDeviceGetCount", result);
  }
  if (count == 0) return Fail("nvml", "NVML shows no GPU; see what nvidia-smi says");
  for (unsigned i = 0; i < count; ++i) {
    nvmlDevice_t handle = nullptr;
    if (const auto result = f_.handle(i, &handle); result != NVML_SUCCESS) {
      return Failed("nvmlDeviceGetHandleByIndex", result);
    }
    char uuid[96] = "";
    char name[96] = "";
    if (const auto result = f_.uuid(handle, uuid, sizeof uuid); result != NVML_SUCCESS) {
      return Failed("nvmlDeviceGetUUID", result);
    }
    if (f_.name(handle, name, sizeof name) != NVML_SUCCESS) name[0] = '\0';
    handles_.push_back(handle);
    devices_.push_back({uuid, name, 0, 0, {}, FactsOf(handle)});
    auto memory = Memory(i);
    if (!memory) return std::unexpected(memory.error());
    devices_.back().total_bytes = memory->total_bytes;
    devices_.back().used_bytes = memory->used_bytes;
  }
  const auto links = ReadLinks(f_.links, handles_);
  for (unsigned i = 0; i < count; ++i) devices_[i].links = links[i];
  return {};
}

DeviceFacts RealNvml::FactsOf(nvmlDevice_t device) const {
  DeviceFacts facts;
  int major = 0, minor = 0;
  if (f_.compute_capability != nullptr &&
      f_.compute_capability(device, &major, &minor) == NVML_SUCCESS) {
    facts.compute_capability = std::to_string(major) + "." + std::to_string(minor);
  }
  char version[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE] = "";
  if (f_.driver_version != nullptr && f_.driver_version(version, sizeof version) == NVML_SUCCESS) {
    facts.driver_version = version;
  }
  nvmlPciInfo_t pci{};
  if (f_.links.pci_info != nullptr && f_.links.pci_info(device, &pci) == NVML_SUCCESS) {
    facts.pci_address = PciAddress(pci.domain, pci.bus, pci.device);
    // A simulated device's address may be a real one's of this machine.
    if (machine_.empty()) facts.place = FindPciPlace(facts.pci_address);
  }
  return facts;
}

Result<NvmlMemory> RealNvml::Memory(size_t device) {
  nvmlMemory_t memory{};
  if (const auto result = f_.memory(handles_[device], &memory); result != NVML_SUCCESS) {
    return Failed("nvmlDeviceGetMemoryInfo", result);
  }
  return NvmlMemory{memory.total, memory.used};
}

Result<std::vector<NvmlProcess>> RealNvml::Processes(size_t device) {
  std::vector<nvmlProcessInfo_t> infos(kFirstProcesses);
  nvmlReturn_t result;
  unsigned count;
  while (true) {
    count = static_cast<unsigned>(infos.size());
    result = f_.processes(handles_[device], &count, infos.data());
    if (result != NVML_ERROR_INSUFFICIENT_SIZE || infos.size() >= kMaxProcesses) break;
    infos.resize(std::max<size_t>(count + 16, infos.size() * 2));
  }
  if (result != NVML_SUCCESS) return Failed("nvmlDeviceGetComputeRunningProcesses", result);
  infos.resize(std::min<size_t>(count, infos.size()));
  std::vector<NvmlProcess> processes;
  for (const nvmlProcessInfo_t& info : infos) {
    NvmlProcess process{static_cast<pid_t>(info.pid), std::nullopt};
    if (info.usedGpuMemory != kNotAvailable) process.used_bytes = info.usedGpuMemory;
    // One process may be listed once for each of its instances.
    auto same = std::find_if(processes.begin(), processes.end(),
                             [&](const NvmlProcess& p) { return p.pid == process.pid; });
    if (same == processes.end()) {
      processes.push_back(process);
    } else if (same->used_bytes && process.used_bytes) {
      *same->used_bytes += *process.used_bytes;
    }
  }
  return processes;
}

Result<std::vector<NvmlTimeSample>> RealNvml::TimeSamples(size_t device, uint64_t since_us) {
  if (f_.utilization == nullptr) {
    return Fail("nvml", "this NVML has no nvmlDeviceGetProcessUtilization");
  }
  std::vector<nvmlProcessUtilizationSample_t> infos(kFirstProcesses);
  nvmlReturn_t result;
  unsigned count;
  while (true) {
    count = static_cast<unsigned>(infos.size());
    result = f_.utilization(handles_[device], infos.data(), &count, since_us);
    if (result != NVML_ERROR_INSUFFICIENT_SIZE || infos.size() >= kMaxProcesses) break;
    infos.resize(std::max<size_t>(count + 16, infos.size() * 2));
  }
  if (result == NVML_ERROR_NOT_FOUND) return std::vector<NvmlTimeSample>{};
  if (result != NVML_SUCCESS) return Failed("nvmlDeviceGetProcessUtilization", result);
  infos.resize(std::min<size_t>(count, infos.size()));
  std::vector<NvmlTimeSample> samples;
  for (const nvmlProcessUtilizationSample_t& info : infos) {
    // Drivers leave room that they asked for and did not fill.
    if (info.pid == 0 || info.timeStamp == 0) continue;
    samples.push_back({static_cast<pid_t>(info.pid), info.timeStamp, info.smUtil});
  }
  return samples;
}

}  // namespace

Result<std::unique_ptr<Nvml>> OpenNvml() { return RealNvml::Open(); }

}  // namespace prorata::driver
