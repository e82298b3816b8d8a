#include <gtest/gtest.h>

#include "sim/core/machine.h"

// Kernels that end together, as collectives do.

namespace prorata::simgpu {
namespace {

class RendezvousTest : public ::testing::Test {
 protected:
  RendezvousTest() {
    MachineConfig config = DefaultMachineConfig();
    config.devices.assign(2, DeviceConfig{});
    for (DeviceConfig& device : config.devices) {
      device.time_slice_ns = 2 * kNsPerMs;
      device.switch_cost_ns = device.launch_latency_ns = 0;
    }
    machine_ = Machine::MakeLocal(config, &clock_);
  }
  void TearDown() override { EXPECT_EQ(machine_->CheckInvariants(), ""); }

  Handle Context(int pid, int device) {
    return *machine_->CreateContext(*machine_->RegisterProcess(pid), device);
  }
  Handle Stream(Handle context) {
    return *machine_->CreateStream(context, StreamKind::kNonBlocking);
  }
  void Submit(Handle stream, const Work& work) { ASSERT_TRUE(machine_->Submit(stream, work)); }
  // Time moves as the machine does, as whoever drives a virtual clock lets it.
  void RunUntil(int64_t end_ns) {
    for (int64_t next = 0; next < end_ns;) {
      next = std::min(end_ns, machine_->NextEventNs());
      clock_.AdvanceTo(next);
    }
    machine_->NextEventNs();
  }

  VirtualClock clock_;
  std::unique_ptr<Machine> machine_;
};

TEST_F(RendezvousTest, TheFirstHoldsItsDeviceUntilTheLastHasRun) {
  const Handle first = Context(1, 0);
  const Handle second = Context(2, 1);
  const Handle on_first = Stream(first), on_second = Stream(second);
  Submit(on_first, Work::Collective(kNsPerMs, 1'000'000, 7, 2));
  Submit(on_first, Work::Kernel(kNsPerMs));
  RunUntil(5 * kNsPerMs);
  EXPECT_EQ(machine_->QueryStream(on_first, 1), Code::kNotReady);
  EXPECT_EQ(machine_->NextEventNs(), kForever);  // nothing goes on by itself
  EXPECT_EQ(*machine_->ContextBusyNs(first), 5 * kNsPerMs);
  Submit(on_second, Work::Collective(kNsPerMs, 1'000'000, 7, 2));
  RunUntil(6 * kNsPerMs);
  EXPECT_EQ(machine_->QueryStream(on_first, 1), Code::kOk);
  EXPECT_EQ(machine_->QueryStream(on_second), Code::kOk);
  RunUntil(7 * kNsPerMs);
  EXPECT_EQ(machine_->QueryStream(on_first), Code::kOk);
  EXPECT_EQ(*machine_->ContextBusyNs(first), 7 * kNsPerMs);
  EXPECT_EQ(*machine_->ContextBusyNs(second), kNsPerMs);
}

TEST_F(RendezvousTest, WhoHasNotTheDeviceEndsWhenItHas) {
  const Handle first = Context(1, 0);
  const Handle beside = Context(2, 0);
  const Handle second = Context(3, 1);
  const Handle on_first = Stream(first), on_beside = Stream(beside), on_second = Stream(second);
  Submit(on_first, Work::Collective(kNsPerMs, 1'000'000, 7, 2));
  Submit(on_beside, Work::Kernel(100 * kNsPerMs));
  Submit(on_second, Work::Collective(3 * kNsPerMs, 1'000'000, 7, 2));
  // 0-2 ms: the first, done with its own and waiting; 2-4 ms: the one beside it; they meet at 3.
  RunUntil(3'500'000);
  EXPECT_EQ(machine_->QueryStream(on_second), Code::kOk);
  EXPECT_EQ(machine_->QueryStream(on_first), Code::kNotReady);
  RunUntil(4 * kNsPerMs);
  EXPECT_EQ(machine_->QueryStream(on_first), Code::kOk);
}

TEST_F(RendezvousTest, TheDeathOfOneLeavesTheOtherWaiting) {
  const Handle first = Context(1, 0);
  const Handle process = *machine_->RegisterProcess(2);
  const Handle on_first = Stream(first);
  const Handle on_second = Stream(*machine_->CreateContext(process, 1));
  Submit(on_first, Work::Collective(kNsPerMs, 1'000'000, 7, 2));
  Submit(on_second, Work::Collective(3 * kNsPerMs, 1'000'000, 7, 2));
  RunUntil(2 * kNsPerMs);
  ASSERT_EQ(machine_->UnregisterProcess(process), Code::kOk);
  RunUntil(9 * kNsPerMs);
  EXPECT_EQ(machine_->QueryStream(on_first), Code::kNotReady);
  EXPECT_EQ(machine_->DestroyContext(first), Code::kOk);
}

}  // namespace
}  // namespace prorata::simgpu
