#include "agent/containers/share_edits.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "driver/driver_files.h"

namespace prorata::agent {
namespace {

// Where the loaders of Debian's and of Red Hat's kin look without being told to.
constexpr const char* kLibraryFolders[] = {"/usr/lib/x86_64-linux-gnu/", "/usr/lib64/"};

// What CUDA programs need of the driver beside libcuda and NVML: not what draws.
constexpr std::string_view kComputeLibraries[] = {
    "libcudadebugger",       "libnvcuvid",        "libnvidia-allocator",      "libnvidia-cfg",
    "libnvidia-encode",      "libnvidia-gpucomp", "libnvidia-nvvm",           "libnvidia-opencl",
    "libnvidia-opticalflow", "libnvidia-pkcs11",  "libnvidia-ptxjitcompiler", "libnvoptix",
};

bool IsForCompute(std::string_view name) {
  return std::any_of(std::begin(kComputeLibraries), std::end(kComputeLibraries),
                     [name](std::string_view begin) { return name.starts_with(begin); });
}

// The rest of the driver.
void AddOthers(const driver::DriverFiles& files, CdiEdits* edits) {
  for (const driver::DriverFiles::File& library : files.libraries) {
    if (!IsForCompute(library.name)) continue;
    for (const char* place : kLibraryFolders) {
      edits->mounts.push_back({library.path, place + library.name});
    }
  }
  for (const std::string& program : files.programs) edits->mounts.push_back({program, program});
}

void AddDriver(const driver::DriverFiles& files, CdiEdits* edits) {
  const std::string folder = std::string(kDriverInContainer) + "/";
  edits->mounts.push_back({files.cuda, folder + "libcuda.so.real"});
  edits->mounts.push_back({files.nvml, folder + "libnvidia-ml.so.real"});
  if (!files.machine_file.empty()) {
    edits->mounts.push_back({files.machine_file, folder + "machine.toml"});
    edits->mounts.push_back({files.machine_state, folder + "state", true});
  }
  AddOthers(files, edits);
}

// The driver as it is, where programs look for it; nothing of prorata. The simulated one finds its
// machine beside itself.
void AddPlainDriver(const driver::DriverFiles& files, CdiEdits* edits) {
  for (const char* place : kLibraryFolders) {
    const std::string folder = place;
    for (const char* end : {"", ".1"}) {
      edits->mounts.push_back({files.cuda, folder + "libcuda.so" + end});
      edits->mounts.push_back({files.nvml, folder + "libnvidia-ml.so" + end});
    }
    if (files.machine_file.empty()) continue;
    edits->mounts.push_back({files.machine_file, folder + "machine.toml"});
    edits->mounts.push_back({files.machine_state, folder + "state", true});
  }
  AddOthers(files, edits);
}

}  // namespace

Result<CdiEdits> EditsOf(const ShareConfig& config, const std::string& nvml_path,
                         const std::string& library_folder) {
  const auto files = driver::FindDriverFiles(nvml_path);
  if (!files) return std::unexpected(files.error());
  CdiEdits edits;
  // NVIDIA's own hook, where it is installed, adds all GPUs to a container whose image asks for
  // them, unless it finds this.
  edits.environment = {"NVIDIA_VISIBLE_DEVICES=void"};
  if (files->machine_file.empty()) {
    std::vector<std::string> uuids;
    for (const DeviceOfShare& on : config.devices) uuids.push_back(on.uuid);
    auto nodes = driver::FindDeviceNodes(uuids);
    if (!nodes) return std::unexpected(nodes.error());
    edits.device_nodes = std::move(*nodes);
  }
  if (config.exclusive) {
    // All GPUs of a simulated machine are behind its one driver.
    std::string visible;
    for (const DeviceOfShare& on : config.devices)
      visible += (visible.empty() ? "" : ",") + on.uuid;
    if (!files->machine_file.empty())
      edits.environment.push_back("CUDA_VISIBLE_DEVICES=" + visible);
    AddPlainDriver(*files, &edits);
    return edits;
  }
  std::error_code error;
  const auto folder = std::filesystem::canonical(config.folder, error);
  if (error) {
    return Fail("cdi", "the share's folder '" + config.folder + "' is gone: " + error.message());
  }
  edits.mounts.push_back({folder.string(), kShareInContainer});
  for (const char* place : kLibraryFolders) {
    for (const std::string library : {"libcuda.so", "libnvidia-ml.so"}) {
      edits.mounts.push_back({library_folder + "/" + library + ".1", place + library + ".1"});
      edits.mounts.push_back({library_folder + "/" + library + ".1", place + library});
    }
  }
  AddDriver(*files, &edits);
  return edits;
}

void AddCacheHook(const std::string& program, CdiEdits* edits) {
  CdiHook hook{"createRuntime", program, {"prorata", "container-hook"}};
  for (const CdiMount& mount : edits->mounts) {
    if (mount.container_path.starts_with(kLibraryFolders[0])) {
      hook.arguments.push_back(mount.container_path);
    }
  }
  if (hook.arguments.size() > 2) edits->hooks.push_back(std::move(hook));
}

}  // namespace prorata::agent
