#include "driver/sim_machine.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace prorata::driver {

std::string SimMachineFile(const std::string& library_path) {
  const auto beside = std::filesystem::path(library_path).parent_path() / "machine.toml";
  std::error_code none;
  if (!std::filesystem::exists(beside, none)) return "";
  const char* named = std::getenv("PRORATA_SIM_MACHINE");
  return named != nullptr && *named != '\0' ? std::string(named) : beside.string();
}

std::string SimStateFolder() {
  const char* named = std::getenv("PRORATA_SIM_STATE");
  const std::filesystem::path folder = named != nullptr && *named != '\0'
                                           ? std::string(named)
                                           : "/dev/shm/prorata-sim-" + std::to_string(::getuid());
  std::error_code none;
  const std::filesystem::path real = std::filesystem::canonical(folder, none);
  return none ? folder.string() : real.string();
}

}  // namespace prorata::driver
