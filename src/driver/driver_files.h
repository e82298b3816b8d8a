#pragma once

// The files of the driver that is loaded on this machine, for containers: found beside NVML, as
// `nvidia-ctk cdi generate` finds them.

#include <string>
#include <vector>

#include "base/result.h"

namespace prorata::driver {

struct DriverFiles {
  std::string cuda;  // the file itself, no link
  std::string nvml;
  struct File {
    std::string path;  // on this machine
    std::string name;  // what a program asks for: one entry for the file and one for each link
  };
  std::vector<File> libraries;        // all others of the driver (JIT compilers and more)
  std::vector<std::string> programs;  // nvidia-smi
  // Of the simulated GPU, else "".
  std::string machine_file;
  std::string machine_state;
};

// `nvml_path`: the library that Nvml uses. "driver_files": what is missing, and where.
Result<DriverFiles> FindDriverFiles(const std::string& nvml_path);

// The device nodes of these GPUs, and those that every CUDA program opens. "device_nodes".
Result<std::vector<std::string>> FindDeviceNodes(const std::vector<std::string>& uuids);

// The minor number in the text of /proc/driver/nvidia/gpus/*/information if it is of this GPU; -1.
int MinorOf(const std::string& information, const std::string& uuid);

}  // namespace prorata::driver
