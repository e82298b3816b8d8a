#pragma once

// What tells the simulated GPU's driver from NVIDIA's, and where its machine's state is
// (docs/design/simulated-gpu.md). The same rules as its own.

#include <string>

namespace prorata::driver {

// The description of the machine, if the library is the simulated NVML: it has a machine.toml
// beside it, and PRORATA_SIM_MACHINE may name another. "" for a driver of real devices.
std::string SimMachineFile(const std::string& library_path);

std::string SimStateFolder();

}  // namespace prorata::driver
