#include <gtest/gtest.h>

#include "sim/core/kill_support.h"

// What goes wrong with a device, in model time.

namespace prorata::simgpu {
namespace {

MachineConfig Faulty(const char* faults) {
  const std::string text = std::string("[[devices]]\n[[devices]]\n") + faults;
  auto config = ParseMachineConfig(text, "m.toml");
  EXPECT_TRUE(config) << config.error().message;
  for (DeviceConfig& device : config->devices) {
    device.memory_bytes = 256 * kMiB;
    device.context_bytes = 16 * kMiB;
    device.launch_latency_ns = 0;
    device.switch_cost_ns = 0;
  }
  return *config;
}

class FaultTest : public ::testing::Test {
 protected:
  void Make(const char* faults) {
    machine_ = Machine::MakeLocal(Faulty(faults), &clock_);
    process_ = machine_->RegisterProcess(1).value();
    for (int device = 0; device < 2; ++device) {
      context_[device] = machine_->CreateContext(process_, device).value();
      stream_[device] = machine_->CreateStream(context_[device], StreamKind::kBlocking).value();
    }
  }
  // Model time that a kernel of a millisecond takes.
  int64_t KernelNs(int device) {
    const int64_t began_ns = clock_.NowNs();
    EXPECT_TRUE(machine_->Submit(stream_[device], Work::Kernel(kNsPerMs)));
    EXPECT_EQ(machine_->WaitStream(stream_[device]), Code::kOk);
    return clock_.NowNs() - began_ns;
  }

  VirtualClock clock_;
  std::unique_ptr<Machine> machine_;
  Handle process_ = 0;
  Handle context_[2] = {};
  Handle stream_[2] = {};
};

TEST_F(FaultTest, AStalledDeviceDoesNothingForSoLongAndTheOtherGoesOn) {
  Make("");
  const Work work[] = {Work::Kernel(2 * kNsPerMs)};
  ASSERT_TRUE(machine_->Submit(stream_[0], work));
  clock_.AdvanceTo(clock_.NowNs() + kNsPerMs);
  ASSERT_EQ(machine_->StallDevice(0, 50 * kNsPerMs), Code::kOk);
  EXPECT_EQ(KernelNs(1), kNsPerMs);
  const int64_t began_ns = clock_.NowNs();
  ASSERT_EQ(machine_->WaitStream(stream_[0]), Code::kOk);
  EXPECT_EQ(clock_.NowNs() - began_ns, 50 * kNsPerMs) << "1 ms was left, 1 ms of the stall is over";
  EXPECT_EQ(machine_->ContextBusyNs(context_[0]).value(), 2 * kNsPerMs);
  EXPECT_EQ(machine_->CheckInvariants(), "");
}

TEST_F(FaultTest, AnIdleDeviceStallsWhoComesThen) {
  Make("");
  ASSERT_EQ(machine_->StallDevice(0, 50 * kNsPerMs), Code::kOk);
  clock_.AdvanceTo(clock_.NowNs() + 20 * kNsPerMs);
  ASSERT_TRUE(machine_->Submit(stream_[0], Work::Copy(WorkKind::kCopyToDevice, 50'000'000)));
  EXPECT_EQ(KernelNs(1), kNsPerMs);
  EXPECT_EQ(KernelNs(0), 29 * kNsPerMs + kNsPerMs + kNsPerMs + 1) << "stall, copy, kernel";
  EXPECT_EQ(KernelNs(0), kNsPerMs);
}

TEST_F(FaultTest, TimedFaultsHappenAtTheirTimeAndOnce) {
  Make(R"(
    [[faults]]
    kind = "stall"
    device = 0
    after_ms = 10
    for_ms = 5
    [[faults]]
    kind = "device-lost"
    device = 1
    after_ms = 20.5
  )");
  for (int i = 0; i < 9; ++i) ASSERT_EQ(KernelNs(0), kNsPerMs) << i;
  clock_.AdvanceTo(clock_.NowNs() + kNsPerMs / 2);
  EXPECT_EQ(KernelNs(0), 6 * kNsPerMs);
  EXPECT_EQ(KernelNs(0), kNsPerMs);
  EXPECT_FALSE(machine_->Lost(1));
  ASSERT_TRUE(machine_->Submit(stream_[1], Work::Kernel(kNsPerS)));
  const int64_t began_ns = clock_.NowNs();
  ASSERT_EQ(machine_->WaitStream(stream_[1]), Code::kOk);
  EXPECT_LT(clock_.NowNs() - began_ns, 5 * kNsPerMs) << "the work goes with the device";
  EXPECT_TRUE(machine_->Lost(1));
  EXPECT_EQ(machine_->Submit(stream_[1], Work::Kernel(1)).error(), Code::kDeviceLost);
  EXPECT_EQ(machine_->AllocSlabs(context_[1], 1).error(), Code::kDeviceLost);
  EXPECT_EQ(machine_->CreateContext(process_, 1).error(), Code::kDeviceLost);
  EXPECT_EQ(KernelNs(0), kNsPerMs) << "the other device is whole";
  EXPECT_EQ(machine_->DestroyContext(context_[1]), Code::kOk);
  EXPECT_EQ(machine_->Usage(1)->used_bytes, 0u);
  EXPECT_EQ(machine_->CheckInvariants(), "");
}

TEST_F(FaultTest, DroppedWorkIsDoneWithForAllWhoWait) {
  Make("");
  const Handle event = machine_->CreateEvent(context_[0]).value();
  const Handle other = machine_->CreateStream(context_[0], StreamKind::kNonBlocking).value();
  const Handle destroyed = machine_->CreateStream(context_[0], StreamKind::kNonBlocking).value();
  const Work work[] = {Work::Kernel(1000, 1'000'000, 1), Work::Kernel(kNsPerS), Work::Record(event),
                       Work::Host(2)};
  ASSERT_TRUE(machine_->Submit(stream_[0], work));
  ASSERT_TRUE(machine_->Submit(other, Work::Copy(WorkKind::kCopyToHost, 1'000'000, 3)));
  ASSERT_TRUE(machine_->Submit(stream_[1], Work::WaitFor(event)));
  ASSERT_TRUE(machine_->Submit(destroyed, Work::Kernel(kNsPerS)));
  ASSERT_EQ(machine_->DestroyStream(destroyed), Code::kOk);
  clock_.AdvanceTo(clock_.NowNs() + kNsPerMs);
  const Action action = machine_->NextAction(process_).value();
  ASSERT_EQ(machine_->DropWork(context_[0]), Code::kOk);
  EXPECT_EQ(machine_->CheckInvariants(), "");
  const int64_t now_ns = clock_.NowNs();
  EXPECT_EQ(machine_->WaitContext(context_[0]), Code::kOk);
  EXPECT_EQ(machine_->WaitEvent(event), Code::kOk);
  EXPECT_EQ(machine_->WaitStream(stream_[1]), Code::kOk) << "of another context";
  EXPECT_EQ(clock_.NowNs(), now_ns) << "nothing is left to wait for";
  EXPECT_NE(machine_->CompleteAction(action), Code::kOk) << "it is gone, too";
  EXPECT_EQ(machine_->NextAction(process_, now_ns).error(), Code::kTimedOut);
  EXPECT_EQ(KernelNs(0), kNsPerMs) << "the engine is free";
  EXPECT_EQ(machine_->CheckInvariants(), "");
}

// The process that has its work there lives; the one that finds the device lost is killed over it.
TEST(FaultKillTest, AtEveryStepOfLosingADevice) {
  const MachineConfig config = Faulty("[[faults]]\nkind = \"device-lost\"\nlaunch = 1\n");
  const int steps = ForEachStep([&](KillAt at) {
    const StateFolder own;
    const auto victims = AttachOrFail(config, own.path());
    const Handle self = victims->RegisterProcess().value();
    const Handle on = victims->CreateContext(self, 0).value();
    const Handle first = victims->CreateStream(on, StreamKind::kBlocking).value();
    const Handle second = victims->CreateStream(on, StreamKind::kLegacy).value();
    const Work work[] = {Work::Kernel(1, 1, 1), Work::Kernel(kNsPerS), Work::Host(2)};
    EXPECT_TRUE(victims->Submit(first, work));
    EXPECT_TRUE(victims->Submit(second, work));
    const int status = Join(Spawn([&] {
      auto other = *Machine::Attach(config, own.path());
      DieAt(at);
      if (other->LoseDevice(0) != Code::kOk) _exit(1);
      RanThrough();
    }));
    EXPECT_EQ(victims->CheckInvariants(), "") << Text(at);
    if (victims->Lost(0)) {
      const int64_t soon_ns = victims->NowNs() + 100 * kNsPerMs;
      EXPECT_EQ(victims->WaitStream(first, UINT64_MAX, soon_ns), Code::kOk) << Text(at);
      EXPECT_EQ(victims->WaitStream(second, UINT64_MAX, soon_ns), Code::kOk) << Text(at);
    } else {
      EXPECT_EQ(status, -SIGKILL);
    }
    EXPECT_EQ(victims->DestroyContext(on), Code::kOk);
    EXPECT_EQ(victims->Usage(0)->used_bytes, 0u);
    return status;
  });
  EXPECT_GT(steps, 20);
}

TEST(FaultConfigTest, ErrorsNameTheFaultAndTheKey) {
  const auto error = [](const std::string& text) {
    const auto config = ParseMachineConfig("[[faults]]\n" + text, "m.toml");
    return config ? "" : config.error().message;
  };
  EXPECT_NE(error("kind = \"bad\"").find("m.toml: faults[0].kind: expected one of"),
            std::string::npos);
  EXPECT_NE(error("kind = \"stall\"").find("faults[0].for_ms"), std::string::npos);
  EXPECT_NE(error("kind = \"hang\"").find("faults[0].for_ms"), std::string::npos);
  EXPECT_NE(error("kind = \"late-launch\"").find("faults[0].for_ms"), std::string::npos);
  EXPECT_NE(error("kind = \"slow\"").find("faults[0].factor"), std::string::npos);
  EXPECT_NE(error("kind = \"slow\"\nfactor = 2\nfor_ms = 3").find("faults[0].for_ms: unknown"),
            std::string::npos);
  EXPECT_NE(error("kind = \"device-lost\"\ndevice = 1").find("has no device 1"), std::string::npos);
  EXPECT_NE(error("kind = \"device-lost\"\nafter_ms = 5").find("faults[0].device"),
            std::string::npos);
  EXPECT_NE(error("kind = \"stall\"\nfor_ms = 1\ndevice = 0\nafter_ms = 5\nprocess = \"a\"")
                .find("faults[0].after_ms"),
            std::string::npos);
  EXPECT_NE(error("kind = \"context-error\"").find("faults[0].error"), std::string::npos);
  EXPECT_EQ(error("kind = \"context-error\"\nerror = \"CUDA_ERROR_ASSERT\"\nlaunch = 3\n"
                  "process = \"gpuload\"\nnth_process = 2"),
            "");
}

}  // namespace
}  // namespace prorata::simgpu
