#include "sim/core/config.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "sim/core/config_reader.h"

namespace prorata::simgpu {

namespace {

std::string ReadDevice(const toml::table& table, const std::string& where, DeviceConfig* device) {
  Reader reader(table, where);
  reader.String("name", &device->name, 95);
  reader.String("uuid", &device->uuid, 79);
  reader.String("pci_bus_id", &device->pci_bus_id, 31);
  reader.Bytes("memory", &device->memory_bytes);
  reader.Bytes("context_memory", &device->context_bytes);
  reader.Bytes("module_memory", &device->module_bytes);
  reader.Bytes("slab", &device->slab_bytes);
  reader.Bytes("pool_chunk", &device->pool_chunk_bytes);
  reader.Flag("multicast", &device->multicast);
  reader.Integer("sm_count", &device->sm_count, 1, 4096);
  std::string capability;
  reader.String("compute_capability", &capability, 7);
  if (!capability.empty()) {
    char rest = 0;
    if (std::sscanf(capability.c_str(), "%2d.%1d%c", &device->compute_major, &device->compute_minor,
                    &rest) != 2) {
      reader.RecordError("compute_capability", "a text such as \"9.0\"");
    }
  }
  reader.Scaled("time_slice_us", &device->time_slice_ns, 1e3, 1, 1e7);
  reader.Scaled("switch_cost_us", &device->switch_cost_ns, 1e3, 0, 1e7);
  reader.Scaled("launch_latency_us", &device->launch_latency_ns, 1e3, 0, 1e7);
  reader.Scaled("h2d_gb_per_s", &device->h2d_bytes_per_s, 1e9, 0.001, 1e6);
  reader.Scaled("d2h_gb_per_s", &device->d2h_bytes_per_s, 1e9, 0.001, 1e6);
  reader.Scaled("d2d_gb_per_s", &device->d2d_bytes_per_s, 1e9, 0.001, 1e6);
  const uint64_t slab = device->slab_bytes;
  if (slab < 64 * kKiB || (slab & (slab - 1)) != 0 || slab > kGiB) {
    reader.RecordError("slab", "a power of two from 64KiB to 1GiB");
  }
  if (device->memory_bytes % slab != 0 || device->memory_bytes > uint64_t{4096} * kGiB ||
      device->memory_bytes / slab > 4'000'000) {
    reader.RecordError("memory", "at most 4TiB and 4 million slabs, a multiple of the slab size");
  }
  return reader.Finish();
}

// What was expected instead, or nothing.
std::string ReadBrokenRules(const toml::node& node, BrokenRules* broken) {
  const toml::array* names = node.as_array();
  if (names == nullptr) return "an array of names of rules.h";
  for (const toml::node& entry : *names) {
    const auto name = entry.value_exact<std::string>();
    const Rule rule = name ? RuleNamed(*name) : Rule::kCount;
    if (rule == Rule::kCount) {
      std::string known;
      for (size_t i = 0; i < broken->size(); ++i) {
        known += (known.empty() ? "" : ", ") + std::string(NameOf(static_cast<Rule>(i)));
      }
      return "names among these: " + known;
    }
    broken->set(static_cast<size_t>(rule));
  }
  return "";
}

void FillIdentities(MachineConfig* config) {
  for (size_t i = 0; i < config->devices.size(); ++i) {
    DeviceConfig& device = config->devices[i];
    char text[64];
    if (device.uuid.empty()) {
      // "prorata" in ASCII, so that nobody takes it for a real one.
      std::snprintf(text, sizeof text, "GPU-70726f72-6174-6100-0000-%012zx", i);
      device.uuid = text;
    }
    if (device.pci_bus_id.empty()) {
      std::snprintf(text, sizeof text, "00000000:%02zX:00.0", i + 1);
      device.pci_bus_id = text;
    }
  }
}

// What is wrong, or nothing.
std::string ReadFaults(const toml::node& node, const std::string& file, MachineConfig* config) {
  const toml::array* faults = node.as_array();
  if (faults == nullptr || faults->size() > kMaxFaults) {
    return file + "faults: expected up to " + std::to_string(kMaxFaults) + " [[faults]] tables";
  }
  for (size_t i = 0; i < faults->size(); ++i) {
    const std::string where = file + "faults[" + std::to_string(i) + "].";
    const toml::table* table = faults->get(i)->as_table();
    if (table == nullptr) return where + ": expected a table";
    const auto fault = ReadFault(table, where);
    if (!fault) return fault.error().message;
    if (fault->device >= static_cast<int>(config->devices.size())) {
      return where + "device: the machine has no device " + std::to_string(fault->device);
    }
    config->faults.push_back(*fault);
  }
  return "";
}

std::string Duplicate(const MachineConfig& config) {
  std::map<std::string, size_t> seen;
  for (size_t i = 0; i < config.devices.size(); ++i) {
    for (const std::string& name : {config.devices[i].uuid, config.devices[i].pci_bus_id}) {
      if (const auto [at, fresh] = seen.try_emplace(name, i); !fresh) {
        return "devices[" + std::to_string(i) + "]: \"" + name + "\" is also devices[" +
               std::to_string(at->second) + "]'s";
      }
    }
  }
  return "";
}

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return FailErrno("sim_config", "cannot read the simulated machine " + path, errno);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// `name` beside the library that this code is in.
std::string BesideTheLibrary(const char* name) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&FindMachineConfig), &info) == 0 || !info.dli_fname) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return (slash == std::string::npos ? "" : path.substr(0, slash + 1)) + name;
}

// In a container the machine is mounted beside the library, and no variable leads elsewhere.
std::string MountedState() {
  const std::string path = BesideTheLibrary("state");
  return !path.empty() && access(path.c_str(), F_OK) == 0 ? path : "";
}

}  // namespace

Result<MachineConfig> ParseMachineConfig(std::string_view text, std::string_view origin) {
  const std::string file = std::string(origin) + ": ";
  const toml::parse_result parsed = toml::parse(text, origin);
  if (!parsed) {
    std::ostringstream where;
    where << file << "line " << parsed.error().source().begin.line << ": "
          << parsed.error().description();
    return Fail("sim_config", where.str());
  }
  const toml::table& root = parsed.table();
  MachineConfig config;
  Reader reader(root, file);
  reader.Integer("driver_version", &config.driver_version, 11000, 99990);
  reader.Number("dilation", &config.dilation, 1, 10000);
  reader.Scaled("init_ms", &config.init_ns, 1e6, 0, 60'000);
  if (const toml::node* node = reader.Take("broken_rules")) {
    const std::string error = ReadBrokenRules(*node, &config.broken);
    if (!error.empty()) reader.RecordError("broken_rules", error);
  }
  if (const toml::node* node = reader.Take("devices")) {
    const toml::array* devices = node->as_array();
    if (devices == nullptr || devices->empty() || devices->size() > kMaxDevices) {
      reader.RecordError("devices", "1 to " + std::to_string(kMaxDevices) + " [[devices]] tables");
    } else {
      config.devices.assign(devices->size(), DeviceConfig{});
      for (size_t i = 0; i < devices->size(); ++i) {
        const std::string where = file + "devices[" + std::to_string(i) + "].";
        const toml::table* device = devices->get(i)->as_table();
        if (device == nullptr) return Fail("sim_config", where + ": expected a table");
        const std::string error = ReadDevice(*device, where, &config.devices[i]);
        if (!error.empty()) return Fail("sim_config", error);
      }
    }
  }
  if (const toml::node* node = reader.Take("faults")) {
    const std::string error = ReadFaults(*node, file, &config);
    if (!error.empty()) return Fail("sim_config", error);
  }
  if (const toml::node* node = reader.Take("links")) {
    const std::string error = ReadLinks(*node, file, &config);
    if (!error.empty()) return Fail("sim_config", error);
  }
  if (const std::string error = reader.Finish(); !error.empty()) return Fail("sim_config", error);
  FillIdentities(&config);
  if (const std::string error = Duplicate(config); !error.empty()) {
    return Fail("sim_config", file + error);
  }
  return config;
}

MachineConfig DefaultMachineConfig() {
  MachineConfig config;
  FillIdentities(&config);
  return config;
}

Result<MachineConfig> FindMachineConfig() {
  const char* named = MountedState().empty() ? std::getenv("PRORATA_SIM_MACHINE") : nullptr;
  if (named != nullptr && *named != 0) {
    const auto text = ReadFile(named);
    if (!text) return std::unexpected(text.error());
    return ParseMachineConfig(*text, named);
  }
  const std::string path = BesideTheLibrary("machine.toml");
  if (path.empty() || access(path.c_str(), F_OK) != 0) return DefaultMachineConfig();
  const auto text = ReadFile(path);
  if (!text) return std::unexpected(text.error());
  return ParseMachineConfig(*text, path);
}

std::string FindStateFolder() {
  if (std::string mounted = MountedState(); !mounted.empty()) return mounted;
  if (const char* named = std::getenv("PRORATA_SIM_STATE"); named != nullptr && *named != 0) {
    return named;
  }
  return "/dev/shm/prorata-sim-" + std::to_string(getuid());
}

std::string CanonicalText(const MachineConfig& config) {
  std::ostringstream out;
  out.precision(17);
  out << "driver_version = " << config.driver_version << "\ndilation = " << config.dilation
      << "\ninit_ns = " << config.init_ns << "\nbroken_rules = " << config.broken << "\n";
  for (const DeviceConfig& device : config.devices) {
    out << "[[devices]]\nname = " << device.name << "\nuuid = " << device.uuid
        << "\npci_bus_id = " << device.pci_bus_id << "\nmemory = " << device.memory_bytes
        << "\nsm_count = " << device.sm_count << "\ncompute_capability = " << device.compute_major
        << "." << device.compute_minor << "\ncontext_memory = " << device.context_bytes
        << "\nmodule_memory = " << device.module_bytes << "\nslab = " << device.slab_bytes
        << "\npool_chunk = " << device.pool_chunk_bytes
        << "\nmulticast = " << (device.multicast ? "true" : "false")
        << "\ntime_slice_ns = " << device.time_slice_ns
        << "\nswitch_cost_ns = " << device.switch_cost_ns
        << "\nlaunch_latency_ns = " << device.launch_latency_ns
        << "\nh2d_bytes_per_s = " << device.h2d_bytes_per_s
        << "\nd2h_bytes_per_s = " << device.d2h_bytes_per_s
        << "\nd2d_bytes_per_s = " << device.d2d_bytes_per_s << "\n";
  }
  for (const LinkConfig& link : config.links) {
    out << "[[links]] " << link.a << " " << link.b << " " << static_cast<int>(link.type) << " "
        << link.bytes_per_s << " " << link.nvlinks << " " << static_cast<int>(link.topology)
        << "\n";
  }
  out << CanonicalText(config.faults);
  return out.str();
}

}  // namespace prorata::simgpu
