#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "generated/nvml_abi.h"
#include "sim/core/test_support.h"

namespace prorata::simgpu {

// The built libnvidia-ml.so.1, loaded as programs load it, on a machine of two devices or of what
// `machine_file_` says.
class NvmlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("PRORATA_SIM_STATE", folder_.path().c_str(), 1);
    setenv("PRORATA_SIM_MACHINE", (folder_.path() + "/machine.toml").c_str(), 1);
    FILE* file = fopen((folder_.path() + "/machine.toml").c_str(), "w");
    ASSERT_NE(file, nullptr);
    fputs(machine_file_, file);
    fclose(file);
    library_ = dlopen(PRORATA_SIM_DIR "/libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  template <typename Function>
  Function* Find(const char* name) {
    auto* found = reinterpret_cast<Function*>(dlsym(library_, name));
    EXPECT_NE(found, nullptr) << name;
    return found;
  }
#define NVML(name) (Find<decltype(::name)>(#name))

  // A process with a context and 64 MiB on device 0.
  pid_t StartGuest(bool busy) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = Spawn([&] {
      auto machine = *Machine::Attach(*FindMachineConfig(), FindStateFolder());
      const Handle process = machine->RegisterProcess().value();
      const Handle context = machine->CreateContext(process, 0).value();
      const Handle stream = machine->CreateStream(context, StreamKind::kBlocking).value();
      machine->AllocSlabs(context, 64 * kMiB).value();
      if (busy) machine->Submit(stream, Work::Kernel(3600 * kNsPerS)).value();
      if (write(ready[1], "x", 1) != 1) _exit(1);
      pause();
    });
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return child;
  }

  static bool Eventually(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      usleep(1000);
    }
    return true;
  }

  StateFolder folder_;
  const char* machine_file_ =
      "[[devices]]\nname = \"A\"\nmemory = \"1GiB\"\n[[devices]]\nname = \"B\"\n";
  void* library_ = nullptr;
};

}  // namespace prorata::simgpu
