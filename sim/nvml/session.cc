#include "sim/nvml/session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace prorata::simgpu {

namespace {

// Handles point here: no program can mistake one for small integers, and a wrong one is found.
char g_device_handles[kMaxDevices];

// The environment names another machine when this differs.
std::string Where() {
  const char* file = std::getenv("PRORATA_SIM_MACHINE");
  return FindStateFolder() + '\n' + (file != nullptr ? file : "");
}

// The fault of an NVML that hangs: while a file `nvml-hangs` lies in the state folder, no call
// comes back in a program that it names (empty: in any). docs/reference/simulated-gpu.md has it.
void WaitWhileHung() {
  const std::string path = FindStateFolder() + "/nvml-hangs";
  while (true) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    char name[256] = "";
    const ssize_t got = ::read(fd, name, sizeof name - 1);
    ::close(fd);
    if (got > 0 && std::string(name, static_cast<size_t>(got)) != program_invocation_short_name) {
      return;
    }
    ::usleep(1000);
  }
}

}  // namespace

NvmlSession& NvmlSession::Get() {
  // Never destroyed: programs ask while exiting.
  static auto& session = *new NvmlSession;
  return session;
}

nvmlReturn_t NvmlSession::Attach() {
  where_ = Where();
  const auto config = FindMachineConfig();
  auto machine = config ? Machine::Attach(*config, FindStateFolder())
                        : Result<std::unique_ptr<Machine>>(std::unexpected(config.error()));
  if (!machine) {
    // NVML has no way to give a reason, and without one nobody finds a misspelled setting.
    std::fprintf(stderr, "prorata simulated GPU: %s\n", machine.error().message.c_str());
    return NVML_ERROR_DRIVER_NOT_LOADED;
  }
  // The previous one is left to whoever still uses it in another thread.
  machine_ = machine->release();
  return NVML_SUCCESS;
}

nvmlReturn_t NvmlSession::Init() {
  WaitWhileHung();
  const std::lock_guard lock(mutex_);
  // The first user gets the machine that the environment names now; who comes later joins that.
  const bool usable = machine_ != nullptr && machine_->pid() == getpid() && !machine_->retired() &&
                      (users_ > 0 || where_ == Where());
  if (!usable) {
    const nvmlReturn_t attached = Attach();
    if (attached != NVML_SUCCESS) return attached;
  }
  ++users_;
  return NVML_SUCCESS;
}

nvmlReturn_t NvmlSession::Shutdown() {
  const std::lock_guard lock(mutex_);
  if (users_ == 0) return NVML_ERROR_UNINITIALIZED;
  --users_;
  return NVML_SUCCESS;
}

Machine* NvmlSession::machine() {
  WaitWhileHung();
  const std::lock_guard lock(mutex_);
  if (users_ == 0) return nullptr;
  if ((machine_->pid() != getpid() || machine_->retired()) && Attach() != NVML_SUCCESS) {
    return nullptr;
  }
  return machine_;
}

int NvmlSession::IndexOf(nvmlDevice_t device) {
  const auto* handle = reinterpret_cast<const char*>(device);
  const Machine* current = machine();
  if (current == nullptr || handle < g_device_handles ||
      handle >= g_device_handles + current->device_count()) {
    return -1;
  }
  return static_cast<int>(handle - g_device_handles);
}

nvmlDevice_t NvmlSession::HandleOf(int index) {
  return reinterpret_cast<nvmlDevice_t>(&g_device_handles[index]);
}

}  // namespace prorata::simgpu
