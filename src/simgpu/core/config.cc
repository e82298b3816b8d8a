#include "simgpu/core/config.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

// Header only and without exceptions: this is linked into a library that lives in other programs.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace prorata::simgpu {

namespace {

// Reads one table: each Read* names a key and its place; what nobody read is an error.
class Reader {
 public:
  Reader(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

  void String(const char* key, std::string* value, size_t limit) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const auto text = node->value_exact<std::string>();
    if (!text || text->empty() || text->size() > limit) {
      return Complain(key, "a text of 1 to " + std::to_string(limit) + " characters");
    }
    *value = *text;
  }
  template <typename Int>
  void Integer(const char* key, Int* value, int64_t low, int64_t high) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const auto number = node->value_exact<int64_t>();
    if (!number || *number < low || *number > high) {
      return Complain(key,
                      "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    *value = static_cast<Int>(*number);
  }
  void Bytes(const char* key, uint64_t* value) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    if (const auto number = node->value_exact<int64_t>(); number && *number > 0) {
      *value = static_cast<uint64_t>(*number);
      return;
    }
    const auto text = node->value_exact<std::string>();
    const auto bytes = text ? ParseBytes(*text) : Fail("", "");
    if (!bytes) return Complain(key, "a size such as \"16GiB\"");
    *value = *bytes;
  }
  // A number in the key's unit, stored in units of 1/scale of it.
  template <typename Int>
  void Scaled(const char* key, Int* value, double scale, double low, double high) {
    double number = 0;
    if (!Number(key, &number, low, high)) return;
    *value = static_cast<Int>(std::llround(number * scale));
  }
  bool Number(const char* key, double* value, double low, double high) {
    const toml::node* node = Take(key);
    if (node == nullptr) return false;
    const auto number = node->value<double>();
    if (!node->is_number() || !(*number >= low && *number <= high)) {
      std::ostringstream range;
      range << "a number from " << low << " to " << high;
      Complain(key, range.str());
      return false;
    }
    *value = *number;
    return true;
  }
  void Complain(const std::string& key, const std::string& expected) {
    if (error_.empty()) error_ = where_ + key + ": expected " + expected;
  }
  const toml::node* Take(const char* key) {
    taken_[key] = true;
    return table_.get(key);
  }
  // The first complaint, or an unknown key, or nothing.
  std::string Finish() {
    for (const auto& [key, node] : table_) {
      if (error_.empty() && !taken_.contains(std::string(key.str()))) {
        std::string known;
        for (const auto& [name, unused] : taken_) known += (known.empty() ? "" : ", ") + name;
        error_ = where_ + std::string(key.str()) + ": unknown setting; known here: " + known;
      }
    }
    return error_;
  }

 private:
  const toml::table& table_;
  std::string where_;
  std::map<std::string, bool> taken_;
  std::string error_;
};

std::string ReadDevice(const toml::table& table, const std::string& where, DeviceConfig* device) {
  Reader reader(table, where);
  reader.String("name", &device->name, 95);
  reader.String("uuid", &device->uuid, 79);
  reader.String("pci_bus_id", &device->pci_bus_id, 31);
  reader.Bytes("memory", &device->memory_bytes);
  reader.Bytes("context_memory", &device->context_bytes);
  reader.Bytes("slab", &device->slab_bytes);
  reader.Bytes("pool_chunk", &device->pool_chunk_bytes);
  reader.Integer("sm_count", &device->sm_count, 1, 4096);
  std::string capability;
  reader.String("compute_capability", &capability, 7);
  if (!capability.empty()) {
    char rest = 0;
    if (std::sscanf(capability.c_str(), "%2d.%1d%c", &device->compute_major, &device->compute_minor,
                    &rest) != 2) {
      reader.Complain("compute_capability", "a text such as \"9.0\"");
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
    reader.Complain("slab", "a power of two from 64KiB to 1GiB");
  }
  if (device->memory_bytes % slab != 0 || device->memory_bytes > uint64_t{4096} * kGiB ||
      device->memory_bytes / slab > 4'000'000) {
    reader.Complain("memory", "at most 4TiB and 4 million slabs, a multiple of the slab size");
  }
  return reader.Finish();
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
  if (const toml::node* node = reader.Take("devices")) {
    const toml::array* devices = node->as_array();
    if (devices == nullptr || devices->empty() || devices->size() > kMaxDevices) {
      reader.Complain("devices", "1 to " + std::to_string(kMaxDevices) + " [[devices]] tables");
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
  if (const char* named = std::getenv("PRORATA_SIM_MACHINE"); named != nullptr && *named != 0) {
    const auto text = ReadFile(named);
    if (!text) return std::unexpected(text.error());
    return ParseMachineConfig(*text, named);
  }
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&FindMachineConfig), &info) != 0 && info.dli_fname) {
    std::string path = info.dli_fname;
    const size_t slash = path.rfind('/');
    path = (slash == std::string::npos ? "" : path.substr(0, slash + 1)) + "machine.toml";
    if (access(path.c_str(), F_OK) == 0) {
      const auto text = ReadFile(path);
      if (!text) return std::unexpected(text.error());
      return ParseMachineConfig(*text, path);
    }
  }
  return DefaultMachineConfig();
}

std::string FindStateFolder() {
  if (const char* named = std::getenv("PRORATA_SIM_STATE"); named != nullptr && *named != 0) {
    return named;
  }
  return "/dev/shm/prorata-sim-" + std::to_string(getuid());
}

std::string CanonicalText(const MachineConfig& config) {
  std::ostringstream out;
  out.precision(17);
  out << "driver_version = " << config.driver_version << "\ndilation = " << config.dilation << "\n";
  for (const DeviceConfig& device : config.devices) {
    out << "[[devices]]\nname = " << device.name << "\nuuid = " << device.uuid
        << "\npci_bus_id = " << device.pci_bus_id << "\nmemory = " << device.memory_bytes
        << "\nsm_count = " << device.sm_count << "\ncompute_capability = " << device.compute_major
        << "." << device.compute_minor << "\ncontext_memory = " << device.context_bytes
        << "\nslab = " << device.slab_bytes << "\npool_chunk = " << device.pool_chunk_bytes
        << "\ntime_slice_ns = " << device.time_slice_ns
        << "\nswitch_cost_ns = " << device.switch_cost_ns
        << "\nlaunch_latency_ns = " << device.launch_latency_ns
        << "\nh2d_bytes_per_s = " << device.h2d_bytes_per_s
        << "\nd2h_bytes_per_s = " << device.d2h_bytes_per_s
        << "\nd2d_bytes_per_s = " << device.d2d_bytes_per_s << "\n";
  }
  return out.str();
}

}  // namespace prorata::simgpu
