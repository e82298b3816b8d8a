#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "sim/core/machine.h"

namespace prorata::simgpu {

// A state folder on tmpfs, gone with the test.
class StateFolder {
 public:
  StateFolder() {
    char path[] = "/dev/shm/prorata-sim-test-XXXXXX";
    path_ = mkdtemp(path);
  }
  ~StateFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Small, so that it is full soon and its tables are quickly checked.
inline MachineConfig SmallMachine() {
  MachineConfig config = DefaultMachineConfig();
  config.devices[0].memory_bytes = 256 * kMiB;
  config.devices[0].context_bytes = 16 * kMiB;
  config.devices[0].switch_cost_ns = 10 * kNsPerUs;
  return config;
}

inline MachineConfig TwoDevices() {
  MachineConfig config = SmallMachine();
  config.devices.push_back(config.devices[0]);
  config.devices[1].memory_bytes = 128 * kMiB;
  config.devices[1].uuid = "GPU-2";
  config.devices[1].pci_bus_id = "00000000:02:00.0";
  return config;
}

inline std::unique_ptr<Machine> AttachOrFail(const MachineConfig& config,
                                             const std::string& folder) {
  auto machine = Machine::Attach(config, folder);
  if (machine) return std::move(*machine);
  ADD_FAILURE() << machine.error().message;
  return nullptr;
}

// Clang's address sanitizer takes a million locks before each fork, and so copies 4 MiB of pages
// after it. Nobody else holds any here: tests start children from their only thread.
inline pid_t Fork() {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  return _Fork();
#endif
#endif
  return fork();
}

// Runs `body` in a forked child, which must not return from it into the test. It dies with the
// test: one that a time limit ended would else leave busy processes behind.
inline pid_t Spawn(const std::function<void()>& body) {
  const pid_t pid = Fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    body();
  } catch (const std::exception& error) {
    fprintf(stderr, "a spawned process: %s\n", error.what());
    _exit(98);
  }
  _exit(0);
}

// The exit status, or minus the signal.
inline int Join(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace prorata::simgpu
