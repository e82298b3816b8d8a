#include "driver/driver_files.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "driver/find_driver.h"
#include "driver/sim_machine.h"

namespace prorata::driver {
namespace {

namespace fs = std::filesystem;

constexpr char kGpus[] = "/proc/driver/nvidia/gpus";

// "550.54.14" of "libnvidia-ml.so.550.54.14".
std::string VersionOf(const fs::path& library) {
  const std::string name = library.filename().string();
  const size_t so = name.find(".so.");
  return so == std::string::npos ? "" : name.substr(so + 4);
}

// Everything of this version in the folder, under its own name and its links'.
void AddLibraries(const fs::path& folder, const std::string& version, DriverFiles* files) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("lib") || name.find(".so") == std::string::npos) continue;
    if (name.starts_with("libcuda.so") || name.starts_with("libnvidia-ml.so")) continue;
    const fs::path real = fs::canonical(entry.path(), none);
    if (none || VersionOf(real) != version) continue;
    files->libraries.push_back({real.string(), name});
  }
  std::sort(files->libraries.begin(), files->libraries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

std::string ValueOf(const std::string& information, const std::string& key) {
  std::istringstream lines(information);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const size_t from = line.find_first_not_of(" \t", key.size());
    return from == std::string::npos ? ""
                                     : line.substr(from, line.find_last_not_of(" \t") + 1 - from);
  }
  return "";
}

}  // namespace

Result<DriverFiles> FindDriverFiles(const std::string& nvml_path) {
  std::error_code none;
  DriverFiles files;
  const fs::path nvml = fs::canonical(nvml_path, none);
  if (none) {
    return Fail("driver_files", "the driver's '" + nvml_path + "' is not there any more");
  }
  files.nvml = nvml.string();
  const fs::path asked = fs::path(nvml_path).parent_path();
  const std::string version = VersionOf(nvml);
  if (const std::string machine = SimMachineFile(nvml_path); !machine.empty()) {
    files.machine_file = machine;
    files.machine_state = SimStateFolder();
  }
  for (const fs::path& cuda : {nvml.parent_path() / ("libcuda.so." + version), asked / kCudaName}) {
    if (const fs::path real = fs::canonical(cuda, none); !none) {
      files.cuda = real.string();
      break;
    }
  }
  if (files.cuda.empty()) {
    return Fail("driver_files", "the driver's libcuda.so.1 is not beside '" + nvml_path +
                                    "'; install the driver whole");
  }
  // The simulated driver has no others.
  if (!files.machine_file.empty()) return files;
  AddLibraries(nvml.parent_path(), version, &files);
  for (const char* program : {"/usr/bin/nvidia-smi"}) {
    if (fs::exists(program, none)) files.programs.emplace_back(program);
  }
  return files;
}

int MinorOf(const std::string& information, const std::string& uuid) {
  if (ValueOf(information, "GPU UUID:") != uuid) return -1;
  const std::string text = ValueOf(information, "Device Minor:");
  int minor = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), minor);
  return error == std::errc() && end == text.data() + text.size() ? minor : -1;
}

Result<std::vector<std::string>> FindDeviceNodes(const std::vector<std::string>& uuids) {
  std::error_code none;
  std::vector<std::string> nodes;
  for (const char* node : {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}) {
    if (fs::exists(node, none)) nodes.emplace_back(node);
  }
  for (const std::string& uuid : uuids) {
    int minor = -1;
    for (const auto& entry : fs::directory_iterator(kGpus, none)) {
      std::ifstream file(entry.path() / "information");
      std::stringstream text;
      text << file.rdbuf();
      minor = std::max(minor, MinorOf(text.str(), uuid));
    }
    const std::string node = "/dev/nvidia" + std::to_string(minor);
    if (minor < 0 || !fs::exists(node, none)) {
      return Fail("device_nodes", "the device node of GPU " + uuid +
                                      " is not known: no file below " + kGpus +
                                      " names it, or its /dev/nvidiaN is missing");
    }
    nodes.push_back(node);
  }
  return nodes;
}

}  // namespace prorata::driver
