#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "sim/nvml/test_support.h"

// The built libnvidia-ml.so.1, loaded as programs load it.

namespace prorata::simgpu {
namespace {

TEST_F(NvmlTest, NothingWorksBeforeInitAndUnsupportedSaysSo) {
  unsigned int count = 0;
  EXPECT_EQ(NVML(nvmlDeviceGetCount_v2)(&count), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(NVML(nvmlShutdown)(), NVML_ERROR_UNINITIALIZED);
  ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device), NVML_SUCCESS);
  unsigned int current = 0;
  unsigned int pending = 0;
  EXPECT_EQ(NVML(nvmlDeviceGetMigMode)(device, &current, &pending), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceGetPowerUsage)(device, &current), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_STREQ(NVML(nvmlErrorString)(NVML_ERROR_NOT_SUPPORTED), "Not Supported");
  EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS);
}

TEST_F(NvmlTest, DevicesAreFoundByEveryName) {
  ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
  unsigned int count = 0;
  ASSERT_EQ(NVML(nvmlDeviceGetCount_v2)(&count), NVML_SUCCESS);
  ASSERT_EQ(count, 2u);
  nvmlDevice_t second = nullptr;
  ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(1, &second), NVML_SUCCESS);
  nvmlDevice_t found = nullptr;
  EXPECT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(2, &found), NVML_ERROR_INVALID_ARGUMENT);
  char uuid[96];
  ASSERT_EQ(NVML(nvmlDeviceGetUUID)(second, uuid, sizeof uuid), NVML_SUCCESS);
  EXPECT_EQ(NVML(nvmlDeviceGetUUID)(second, uuid, 5), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(NVML(nvmlDeviceGetHandleByUUID)(uuid, &found), NVML_SUCCESS);
  EXPECT_EQ(found, second);
  nvmlPciInfo_t pci{};
  ASSERT_EQ(NVML(nvmlDeviceGetPciInfo_v3)(second, &pci), NVML_SUCCESS);
  EXPECT_STREQ(pci.busId, "00000000:02:00.0");
  found = nullptr;
  EXPECT_EQ(NVML(nvmlDeviceGetHandleByPciBusId_v2)("0000:02:00.0", &found), NVML_SUCCESS);
  EXPECT_EQ(found, second);
  EXPECT_EQ(NVML(nvmlDeviceGetHandleByPciBusId_v2)("0000:09:00.0", &found), NVML_ERROR_NOT_FOUND);
  char name[96];
  EXPECT_EQ(NVML(nvmlDeviceGetName)(second, name, sizeof name), NVML_SUCCESS);
  EXPECT_STREQ(name, "B");
  EXPECT_EQ(NVML(nvmlDeviceGetName)(nullptr, name, sizeof name), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS);
}

TEST_F(NvmlTest, ShowsAProcessAndForgetsItTheMomentItIsKilled) {
  // Alone: the machine comes into being by NVML.
  ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device), NVML_SUCCESS);
  nvmlMemory_t memory{};
  ASSERT_EQ(NVML(nvmlDeviceGetMemoryInfo)(device, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.total, kGiB);
  EXPECT_EQ(memory.used, 0u);

  const pid_t guest = StartGuest(false);
  unsigned int count = 0;
  EXPECT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, nullptr),
            NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_EQ(count, 1u);
  nvmlProcessInfo_t info{};
  ASSERT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, &info), NVML_SUCCESS);
  EXPECT_EQ(info.pid, static_cast<unsigned>(guest));
  EXPECT_EQ(info.usedGpuMemory, (512 + 64) * kMiB);
  nvmlProcessInfo_v1_t old_info[2] = {};
  old_info[1].pid = 7;
  ASSERT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses)(device, &count, old_info), NVML_SUCCESS);
  EXPECT_EQ(old_info[0].usedGpuMemory, info.usedGpuMemory);
  EXPECT_EQ(old_info[1].pid, 7u) << "the old structure is shorter";

  nvmlMemory_v2_t second{};
  EXPECT_EQ(NVML(nvmlDeviceGetMemoryInfo_v2)(device, &second),
            NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  second.version = nvmlMemory_v2;
  ASSERT_EQ(NVML(nvmlDeviceGetMemoryInfo_v2)(device, &second), NVML_SUCCESS);
  EXPECT_EQ(second.used, info.usedGpuMemory);

  kill(guest, SIGKILL);
  Join(guest);
  ASSERT_EQ(NVML(nvmlDeviceGetMemoryInfo)(device, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.used, 0u);
  EXPECT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, nullptr), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS);
}

TEST_F(NvmlTest, WhoAsksOnceHearsOfTheTimeSinceAProcessBegan) {
  const pid_t busy = StartGuest(true);
  {
    auto machine = *Machine::Attach(*FindMachineConfig(), FindStateFolder());
    ASSERT_TRUE(Eventually([&] { return machine->Usage(0)->busy_ns > kNsPerS / 5; }));
  }
  ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device), NVML_SUCCESS);
  nvmlProcessUtilizationSample_t sample{};
  unsigned int count = 1;
  // The answer is the mean over all samples. The first that names it may hold a moment of its
  // kernel among many that hold none, which is 0 per cent.
  ASSERT_TRUE(Eventually([&] {
    count = 1;
    return NVML(nvmlDeviceGetProcessUtilization)(device, &sample, &count, 0) == NVML_SUCCESS &&
           sample.smUtil > 0;
  }));
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(sample.pid, static_cast<unsigned>(busy));
  EXPECT_LE(sample.smUtil, 100u);
  kill(busy, SIGKILL);
  Join(busy);
  EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS);
}

TEST_F(NvmlTest, UtilizationIsWhoRan) {
  ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device), NVML_SUCCESS);
  const pid_t idle = StartGuest(false);
  const auto ask = [&](std::vector<nvmlProcessUtilizationSample_t>* samples) {
    samples->resize(8);
    unsigned int count = 8;
    const nvmlReturn_t result =
        NVML(nvmlDeviceGetProcessUtilization)(device, samples->data(), &count, 0);
    samples->resize(result == NVML_SUCCESS ? count : 0);
    return result;
  };
  std::vector<nvmlProcessUtilizationSample_t> samples;
  EXPECT_EQ(ask(&samples), NVML_ERROR_NOT_FOUND) << "idle processes are not listed";
  kill(idle, SIGKILL);
  Join(idle);

  const pid_t busy = StartGuest(true);
  // The first sample of it may have begun before its kernel.
  EXPECT_TRUE(Eventually([&] {
    return ask(&samples) == NVML_SUCCESS && samples.size() == 1 &&
           samples[0].pid == static_cast<unsigned>(busy) && samples[0].smUtil == 100;
  })) << samples.size()
      << " processes, the first at " << (samples.empty() ? 0 : samples[0].smUtil);
  nvmlUtilization_t rates{};
  ASSERT_EQ(NVML(nvmlDeviceGetUtilizationRates)(device, &rates), NVML_SUCCESS);
  EXPECT_GT(rates.gpu, 10u);
  kill(busy, SIGKILL);
  Join(busy);
  EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS);
}

TEST_F(NvmlTest, ShutdownLeavesTheProcessesOwnRegistrationAlone) {
  auto machine = AttachOrFail(*FindMachineConfig(), FindStateFolder());
  const Handle process = machine->RegisterProcess().value();
  const Handle context = machine->CreateContext(process, 1).value();
  ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(1, &device), NVML_SUCCESS);
  unsigned int count = 1;
  nvmlProcessInfo_t info{};
  ASSERT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, &info), NVML_SUCCESS);
  EXPECT_EQ(info.pid, static_cast<unsigned>(getpid()));
  EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS);
  const pid_t child = Spawn([&] {
    auto other = *Machine::Attach(*FindMachineConfig(), FindStateFolder());
    _exit((*other->Usage(1)).processes.size() == 1 ? 0 : 1);
  });
  EXPECT_EQ(Join(child), 0) << "others take this process for dead";
  EXPECT_EQ(machine->QueryContext(context), Code::kOk);
}

TEST_F(NvmlTest, ABadMachineFileFailsInitWithItsReason) {
  setenv("PRORATA_SIM_MACHINE", "/nonexistent/machine.toml", 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(NVML(nvmlInit_v2)(), NVML_ERROR_DRIVER_NOT_LOADED);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("/nonexistent/machine.toml"),
            std::string::npos);
}

}  // namespace
}  // namespace prorata::simgpu
