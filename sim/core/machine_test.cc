#include "sim/core/machine.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

// The model on a virtual clock: what it promises about time, order and accounts.

namespace prorata::simgpu {
namespace {

class MachineTest : public ::testing::Test {
 protected:
  void Make(int devices = 1) {
    MachineConfig config = DefaultMachineConfig();
    config.devices.assign(devices, DeviceConfig{});
    for (DeviceConfig& device : config.devices) {
      device.time_slice_ns = 2 * kNsPerMs;
      device.switch_cost_ns = switch_cost_ns_;
      device.launch_latency_ns = latency_ns_;
      device.context_bytes = context_bytes_;
      device.h2d_bytes_per_s = 1'000'000'000;
      device.d2h_bytes_per_s = 1'000'000'000;
    }
    machine_ = Machine::MakeLocal(config, &clock_);
  }
  void TearDown() override {
    if (machine_ != nullptr) {
      EXPECT_EQ(machine_->CheckInvariants(), "");
    }
  }

  struct Program {
    Handle process = 0;
    Handle context = 0;
    Handle stream = 0;
  };
  Program Add(int pid, StreamKind kind = StreamKind::kBlocking) {
    Program program;
    program.process = *machine_->RegisterProcess(pid);
    program.context = *machine_->CreateContext(program.process, 0);
    program.stream = *machine_->CreateStream(program.context, kind);
    return program;
  }
  int64_t Busy(const Program& program) { return *machine_->ContextBusyNs(program.context); }

  // Runs until `end_ns`; `refill` is called at every event.
  void RunUntil(int64_t end_ns, const std::function<void()>& refill) {
    while (clock_.NowNs() < end_ns) {
      refill();
      clock_.AdvanceTo(std::min(end_ns, machine_->NextEventNs()));
    }
    machine_->NextEventNs();
  }
  // Keeps at least two kernels of a length queued: a context with nothing queued gives up its
  // turn.
  void KeepBusy(const Program& program, int64_t kernel_ns) {
    uint64_t& last = last_[program.stream];
    while (last < 3 || machine_->QueryStream(program.stream, last - 2) == Code::kOk) {
      last = machine_->Submit(program.stream, Work::Kernel(kernel_ns)).value();
    }
  }
  bool Submit(Handle stream, const Work& work) {
    return machine_->Submit(stream, work).has_value();
  }

  int64_t switch_cost_ns_ = 0;
  int64_t latency_ns_ = 0;
  uint64_t context_bytes_ = 512 * kMiB;
  std::map<Handle, uint64_t> last_;
  VirtualClock clock_;
  std::unique_ptr<Machine> machine_;
};

TEST_F(MachineTest, TwoBusyContextsGetHalfEach) {
  Make();
  const Program a = Add(1);
  const Program b = Add(2);
  RunUntil(kNsPerS, [&] {
    KeepBusy(a, kNsPerMs);
    KeepBusy(b, 300 * kNsPerUs);
  });
  EXPECT_NEAR(static_cast<double>(Busy(a)) / kNsPerS, 0.5, 0.005);
  EXPECT_NEAR(static_cast<double>(Busy(b)) / kNsPerS, 0.5, 0.005);
}

TEST_F(MachineTest, ThreeEqualAndOneLongKernelStillAThird) {
  switch_cost_ns_ = 100 * kNsPerUs;
  Make();
  const Program programs[] = {Add(1), Add(2), Add(3)};
  RunUntil(2 * kNsPerS, [&] {
    KeepBusy(programs[0], 100 * kNsPerUs);
    KeepBusy(programs[1], kNsPerMs);
    KeepBusy(programs[2], 5 * kNsPerS);
  });
  const auto usage = *machine_->Usage(0);
  int64_t sum = 0;
  for (const Program& program : programs) {
    EXPECT_NEAR(static_cast<double>(Busy(program)) / static_cast<double>(usage.busy_ns), 1.0 / 3,
                0.005);
    sum += Busy(program);
  }
  EXPECT_EQ(sum, usage.busy_ns);
  EXPECT_EQ(usage.busy_ns + usage.switching_ns, 2 * kNsPerS);
  EXPECT_NEAR(static_cast<double>(usage.switching_ns) / (2 * kNsPerS), 0.1 / 2.1, 0.003);
}

TEST_F(MachineTest, APairThatLeavesGapsInterleaves) {
  Make();
  const Program programs[] = {Add(1), Add(2)};
  int64_t next[] = {0, 0};
  int64_t finish[] = {-1, -1};
  const auto refill = [&] {
    for (int i = 0; i < 2; ++i) {
      if (machine_->QueryStream(programs[i].stream) != Code::kOk) continue;
      if (finish[i] < 0) finish[i] = next[i] = clock_.NowNs() + kNsPerMs;  // 1 ms on the host
      if (clock_.NowNs() >= next[i]) {
        ASSERT_TRUE(Submit(programs[i].stream, Work::Kernel(kNsPerMs)));
        finish[i] = -1;
      }
    }
  };
  while (clock_.NowNs() < kNsPerS) {
    refill();
    clock_.Advance(20 * kNsPerUs);
  }
  EXPECT_GT((*machine_->Usage(0)).busy_ns, 0.95 * kNsPerS);
}

TEST_F(MachineTest, AKernelIsNeverDoneBeforeItsEngineTime) {
  Make();
  const Program a = Add(1);
  const Program b = Add(2);
  ASSERT_TRUE(Submit(a.stream, Work::Kernel(10 * kNsPerMs)));
  ASSERT_TRUE(Submit(b.stream, Work::Kernel(10 * kNsPerMs)));
  EXPECT_EQ(machine_->WaitStream(a.stream), Code::kOk);
  // a: slices [0,2) [4,6) ... so its tenth millisecond ends at 18.
  EXPECT_EQ(clock_.NowNs(), 18 * kNsPerMs);
  EXPECT_EQ(machine_->WaitStream(b.stream), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 20 * kNsPerMs);
}

TEST_F(MachineTest, StreamsAreFifoAndQueriesTellTheSequence) {
  latency_ns_ = 3 * kNsPerUs;
  Make();
  const Program a = Add(1);
  const Work work[] = {Work::Kernel(kNsPerMs), Work::Kernel(kNsPerMs), Work::Kernel(kNsPerMs)};
  EXPECT_EQ(machine_->Submit(a.stream, work).value(), 3u);
  EXPECT_EQ(machine_->WaitStream(a.stream, 2), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 2 * kNsPerMs + latency_ns_);
  EXPECT_EQ(machine_->QueryStream(a.stream, 2), Code::kOk);
  EXPECT_EQ(machine_->QueryStream(a.stream, 3), Code::kNotReady);
  EXPECT_EQ(machine_->WaitStream(a.stream, 100), Code::kOk) << "past the end is the end";
  EXPECT_EQ(machine_->QueryStream(a.stream), Code::kOk);
}

TEST_F(MachineTest, WaitEndsAtItsDeadline) {
  Make();
  const Program a = Add(1);
  ASSERT_TRUE(Submit(a.stream, Work::Kernel(kNsPerS)));
  EXPECT_EQ(machine_->WaitContext(a.context, kNsPerMs), Code::kTimedOut);
  EXPECT_EQ(clock_.NowNs(), kNsPerMs);
}

TEST_F(MachineTest, LegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  Make();
  const Program a = Add(1);
  const Handle legacy = *machine_->CreateStream(a.context, StreamKind::kLegacy);
  const Handle free = *machine_->CreateStream(a.context, StreamKind::kNonBlocking);
  const Handle other = *machine_->CreateStream(a.context, StreamKind::kBlocking);
  // Small kernels, so that only order keeps them apart.
  const Work kernel = Work::Kernel(kNsPerMs, 100'000);
  ASSERT_TRUE(Submit(a.stream, kernel));
  ASSERT_TRUE(Submit(legacy, kernel));
  ASSERT_TRUE(Submit(other, kernel));
  ASSERT_TRUE(Submit(free, kernel));
  EXPECT_EQ(machine_->WaitStream(free), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), kNsPerMs) << "a non-blocking stream waits for nobody";
  EXPECT_EQ(machine_->QueryStream(legacy), Code::kNotReady);
  EXPECT_EQ(machine_->WaitStream(legacy), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 2 * kNsPerMs);
  EXPECT_EQ(machine_->WaitStream(other), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 3 * kNsPerMs);
  EXPECT_FALSE(machine_->CreateStream(a.context, StreamKind::kLegacy)) << "one per context";
}

TEST_F(MachineTest, EventsOrderStreamsAndMeasure) {
  Make();
  const Program a = Add(1);
  const Handle second = *machine_->CreateStream(a.context, StreamKind::kNonBlocking);
  const Handle start = *machine_->CreateEvent(a.context);
  const Handle end = *machine_->CreateEvent(a.context);
  EXPECT_EQ(machine_->QueryEvent(start), Code::kOk) << "never recorded";
  EXPECT_EQ(machine_->ElapsedNs(start, end).error(), Code::kInvalidValue);
  const Work work[] = {Work::Record(start), Work::Kernel(5 * kNsPerMs, 500'000), Work::Record(end)};
  ASSERT_TRUE(machine_->Submit(a.stream, work));
  const Work after[] = {Work::WaitFor(end), Work::Kernel(kNsPerMs, 500'000)};
  ASSERT_TRUE(machine_->Submit(second, after));
  // The wait holds on to the record it saw; a later one does not move it.
  ASSERT_TRUE(Submit(a.stream, Work::Kernel(50 * kNsPerMs, 500'000)));
  ASSERT_TRUE(Submit(a.stream, Work::Record(start)));
  EXPECT_EQ(machine_->QueryEvent(end), Code::kNotReady);
  EXPECT_EQ(machine_->WaitEvent(end), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 5 * kNsPerMs);
  EXPECT_EQ(machine_->WaitStream(second), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 6 * kNsPerMs);
  EXPECT_EQ(machine_->ElapsedNs(start, end).error(), Code::kNotReady) << "start was re-recorded";
  EXPECT_EQ(machine_->WaitEvent(start), Code::kOk);
  EXPECT_EQ(machine_->ElapsedNs(end, start).value(), 50 * kNsPerMs);
}

TEST_F(MachineTest, WaitForTheFirstRecordOutlivesASecondOnAnotherStream) {
  Make();
  const Program a = Add(1);
  const Handle b = *machine_->CreateStream(a.context, StreamKind::kNonBlocking);
  const Handle c = *machine_->CreateStream(a.context, StreamKind::kNonBlocking);
  const Handle event = *machine_->CreateEvent(a.context);
  ASSERT_TRUE(Submit(a.stream, Work::Kernel(9 * kNsPerMs, 100'000)));
  ASSERT_TRUE(Submit(a.stream, Work::Record(event)));
  ASSERT_TRUE(Submit(c, Work::WaitFor(event)));
  ASSERT_TRUE(Submit(b, Work::Record(event)));
  EXPECT_EQ(machine_->QueryEvent(event), Code::kOk) << "the latest record is complete";
  EXPECT_EQ(machine_->WaitStream(c), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 9 * kNsPerMs);
}

TEST_F(MachineTest, KernelsOfAContextOverlapUpToItsSms) {
  Make();
  const Program a = Add(1);
  Handle streams[3];
  for (Handle& stream : streams) {
    stream = *machine_->CreateStream(a.context, StreamKind::kNonBlocking);
    ASSERT_TRUE(Submit(stream, Work::Kernel(kNsPerMs, 400'000)));
  }
  EXPECT_EQ(machine_->WaitStream(streams[1]), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), kNsPerMs) << "two fit beside each other";
  EXPECT_EQ(machine_->WaitStream(streams[2]), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 2 * kNsPerMs);
  EXPECT_EQ(Busy(a), 2 * kNsPerMs) << "overlapping time counts once";
}

TEST_F(MachineTest, HigherPriorityGoesFirst) {
  Make();
  const Program a = Add(1);
  const Handle low = *machine_->CreateStream(a.context, StreamKind::kNonBlocking, 0);
  const Handle high = *machine_->CreateStream(a.context, StreamKind::kNonBlocking, -5);
  ASSERT_TRUE(Submit(a.stream, Work::Kernel(kNsPerMs)));
  ASSERT_TRUE(Submit(low, Work::Kernel(kNsPerMs)));
  ASSERT_TRUE(Submit(high, Work::Kernel(kNsPerMs)));
  EXPECT_EQ(machine_->WaitStream(high), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 2 * kNsPerMs);
}

TEST_F(MachineTest, CopiesRunBesideKernels) {
  Make();
  const Program a = Add(1);
  const Handle second = *machine_->CreateStream(a.context, StreamKind::kNonBlocking);
  ASSERT_TRUE(Submit(a.stream, Work::Kernel(4 * kNsPerMs)));
  ASSERT_TRUE(Submit(second, Work::Copy(WorkKind::kCopyToDevice, 1'000'000)));  // 1 ms
  EXPECT_EQ(machine_->WaitStream(second), Code::kOk);
  EXPECT_NEAR(static_cast<double>(clock_.NowNs()), kNsPerMs, 10);
  EXPECT_EQ(machine_->WaitContext(a.context), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 4 * kNsPerMs);
}

TEST_F(MachineTest, ActionsHoldTheStreamUntilCompleted) {
  Make();
  const Program a = Add(1);
  const Work work[] = {Work::Copy(WorkKind::kCopyToDevice, 999'999, 71), Work::Host(72)};
  ASSERT_TRUE(machine_->Submit(a.stream, work));
  const Action first = machine_->NextAction(a.process).value();
  EXPECT_EQ(first.token, 71u);
  EXPECT_EQ(clock_.NowNs(), kNsPerMs) << "not before the copy's time is over";
  EXPECT_EQ(machine_->NextAction(a.process).error(), Code::kStuck);
  EXPECT_EQ(machine_->WaitStream(a.stream), Code::kStuck);
  EXPECT_EQ(machine_->CompleteAction(first), Code::kOk);
  EXPECT_EQ(machine_->CompleteAction(first), Code::kInvalidValue) << "once only";
  EXPECT_EQ(machine_->CompleteAction(machine_->NextAction(a.process).value()), Code::kOk);
  EXPECT_EQ(machine_->QueryStream(a.stream), Code::kOk);
}

TEST_F(MachineTest, QueueHasAnEndAndRoomIsWaitedFor) {
  Make();
  const Program a = Add(1);
  for (uint32_t i = 0; i < Machine::kQueueDepth; ++i) {
    ASSERT_TRUE(Submit(a.stream, Work::Kernel(kNsPerUs)));
  }
  EXPECT_EQ(machine_->Submit(a.stream, Work::Kernel(1)).error(), Code::kFull);
  EXPECT_EQ(machine_->WaitForRoom(a.stream, 10), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 10 * kNsPerUs);
  EXPECT_TRUE(Submit(a.stream, Work::Kernel(1)));
}

TEST_F(MachineTest, ADestroyedStreamDrainsAndItsHandleIsGone) {
  Make();
  const Program a = Add(1);
  ASSERT_TRUE(Submit(a.stream, Work::Kernel(kNsPerMs)));
  EXPECT_EQ(machine_->DestroyStream(a.stream), Code::kOk);
  EXPECT_EQ(machine_->QueryStream(a.stream), Code::kInvalidHandle);
  EXPECT_EQ(machine_->WaitContext(a.context), Code::kOk);
  EXPECT_EQ(Busy(a), kNsPerMs);
}

TEST_F(MachineTest, ADestroyedContextLeavesTheEngineToTheOther) {
  Make();
  const Program a = Add(1);
  const Program b = Add(2);
  ASSERT_TRUE(Submit(a.stream, Work::Kernel(kNsPerS)));
  ASSERT_TRUE(Submit(b.stream, Work::Kernel(10 * kNsPerMs)));
  clock_.AdvanceTo(kNsPerMs);
  EXPECT_EQ(machine_->DestroyContext(a.context), Code::kOk);
  EXPECT_EQ(machine_->DestroyContext(a.context), Code::kInvalidHandle);
  EXPECT_EQ(machine_->WaitStream(b.stream), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 11 * kNsPerMs);
}

TEST_F(MachineTest, SlabsMoveBetweenContextsOfOneProcess) {
  Make();
  const Program a = Add(1);
  const Program stranger = Add(2);
  const Handle heir = machine_->CreateContext(a.process, 0).value();
  const uint64_t before = machine_->MemInfo(0)->free_bytes;
  const auto slabs = *machine_->AllocSlabs(a.context, 10 * kMiB);
  const auto others = *machine_->AllocSlabs(stranger.context, 2 * kMiB);
  EXPECT_EQ(machine_->MoveSlabs(a.context, stranger.context, slabs), Code::kInvalidValue);
  std::vector<Extent> mixed = slabs;
  mixed.push_back(others[0]);
  EXPECT_EQ(machine_->MoveSlabs(a.context, heir, mixed), Code::kInvalidValue);  // and none moved
  EXPECT_EQ(machine_->FreeSlabs(stranger.context, others), Code::kOk);
  EXPECT_EQ(machine_->MoveSlabs(a.context, heir, slabs), Code::kOk);
  EXPECT_EQ(machine_->FreeSlabs(a.context, slabs), Code::kInvalidValue);
  EXPECT_EQ(machine_->CheckInvariants(), "");
  EXPECT_EQ(machine_->FreeSlabs(heir, slabs), Code::kOk);
  EXPECT_EQ(machine_->MemInfo(0)->free_bytes, before);
}

TEST_F(MachineTest, MemoryIsCountedToTheSlab) {
  context_bytes_ = 2 * kMiB;
  Make();
  const Program a = Add(1);
  const uint64_t slab = machine_->device(0).slab_bytes;
  const MemoryInfo before = *machine_->MemInfo(0);
  EXPECT_EQ(before.total_bytes - before.free_bytes, machine_->device(0).context_bytes);
  const auto one = *machine_->AllocSlabs(a.context, 1);
  const auto two = *machine_->AllocSlabs(a.context, 10 * slab);
  EXPECT_EQ((*machine_->MemInfo(0)).free_bytes, before.free_bytes - 11 * slab);
  EXPECT_EQ(machine_->AllocSlabs(a.context, before.free_bytes).error(), Code::kOutOfMemory);
  ASSERT_EQ(two.size(), 1u);
  const Extent twice[] = {two[0], two[0]};
  EXPECT_EQ(machine_->FreeSlabs(a.context, twice), Code::kInvalidValue);
  EXPECT_EQ((*machine_->MemInfo(0)).free_bytes, before.free_bytes - 11 * slab) << "all or nothing";
  const Extent middle[] = {{two[0].offset_bytes + 4 * slab, 2 * slab}};
  EXPECT_EQ(machine_->FreeSlabs(a.context, middle), Code::kOk);
  EXPECT_EQ(machine_->FreeSlabs(a.context, two), Code::kInvalidValue) << "no longer all its own";
  // What is left is in pieces and can still be had to the last slab.
  const auto rest = machine_->AllocSlabs(a.context, (*machine_->MemInfo(0)).free_bytes);
  ASSERT_TRUE(rest);
  EXPECT_GT(rest->size(), 1u);
  EXPECT_EQ((*machine_->MemInfo(0)).free_bytes, 0u);
  EXPECT_EQ(machine_->CheckInvariants(), "");
  EXPECT_EQ(machine_->FreeSlabs(a.context, one), Code::kOk);
  EXPECT_EQ(machine_->UnregisterProcess(a.process), Code::kOk);
  EXPECT_EQ((*machine_->MemInfo(0)).free_bytes, before.total_bytes);
}

TEST_F(MachineTest, AContextNeedsItsMemory) {
  Make();
  const Program a = Add(1);
  const uint64_t context = machine_->device(0).context_bytes;
  ASSERT_TRUE(machine_->AllocSlabs(a.context, (*machine_->MemInfo(0)).free_bytes - context + 1));
  const Handle process = *machine_->RegisterProcess(2);
  EXPECT_EQ(machine_->CreateContext(process, 0).error(), Code::kOutOfMemory);
  EXPECT_EQ(machine_->CreateContext(process, 1).error(), Code::kInvalidValue);
}

TEST_F(MachineTest, UsageShowsEachProcessAndTheLastSecond) {
  Make(2);
  const Program a = Add(11);
  const Program b = Add(12);
  ASSERT_TRUE(machine_->AllocSlabs(b.context, kGiB));
  for (int ms = 0; ms < 3000; ++ms) {  // busy a quarter of the time
    if (ms % 4 == 0) {
      ASSERT_TRUE(Submit(a.stream, Work::Kernel(kNsPerMs)));
    }
    clock_.Advance(kNsPerMs);
  }
  const DeviceUsage usage = *machine_->Usage(0);
  ASSERT_EQ(usage.processes.size(), 2u);
  EXPECT_EQ(usage.processes[0].pid, 11);
  EXPECT_EQ(usage.processes[0].busy_ns, usage.busy_ns);
  EXPECT_EQ(usage.processes[1].used_bytes, kGiB + machine_->device(0).context_bytes);
  EXPECT_NEAR(usage.utilization_ppm, 250'000, 10'000);
  EXPECT_TRUE((*machine_->Usage(1)).processes.empty());
}

TEST_F(MachineTest, ForeignHandlesAreRefused) {
  Make();
  const Program a = Add(1);
  EXPECT_EQ(machine_->QueryStream(0), Code::kInvalidHandle);
  EXPECT_EQ(machine_->QueryStream(a.context), Code::kInvalidHandle);
  EXPECT_EQ(machine_->QueryStream(a.stream + 1), Code::kInvalidHandle);
  EXPECT_EQ(machine_->QueryStream(a.stream + (Handle{1} << 32)), Code::kInvalidHandle);
  EXPECT_EQ(machine_->Submit(a.stream, Work::Kernel(1, 0)).error(), Code::kInvalidValue);
  EXPECT_EQ(machine_->Submit(a.stream, Work::Record(a.stream)).error(), Code::kInvalidValue);
}

TEST_F(MachineTest, TheSameCallsGiveTheSameHistory) {
  const auto run = [this] {
    clock_ = VirtualClock();
    last_.clear();
    switch_cost_ns_ = 37 * kNsPerUs;
    latency_ns_ = 3 * kNsPerUs;
    Make();
    const Program a = Add(1);
    const Program b = Add(2);
    RunUntil(200 * kNsPerMs, [&] {
      KeepBusy(a, 713 * kNsPerUs);
      KeepBusy(b, 1'171 * kNsPerUs);
    });
    return std::pair(Busy(a), Busy(b));
  };
  EXPECT_EQ(run(), run());
}

TEST_F(MachineTest, AStreamWaitsForAnotherStreamsEntryYetToCome) {
  Make();
  const Program a = Add(1);
  const Handle other = *machine_->CreateStream(a.context, StreamKind::kNonBlocking);
  const Handle gone = *machine_->CreateStream(a.context, StreamKind::kNonBlocking);
  ASSERT_TRUE(Submit(gone, Work::Kernel(7 * kNsPerMs, 1)));
  ASSERT_TRUE(Submit(other, Work::WaitForStream(a.stream, 2)));
  ASSERT_TRUE(Submit(other, Work::WaitForStream(gone, 1)));
  ASSERT_TRUE(Submit(other, Work::WaitForStream(12345, 1)));  // never existed: nothing to wait for
  ASSERT_EQ(machine_->DestroyStream(gone), Code::kOk);
  ASSERT_TRUE(Submit(a.stream, Work::Kernel(kNsPerMs, 1)));
  clock_.AdvanceTo(5 * kNsPerMs);
  EXPECT_EQ(machine_->QueryStream(other), Code::kNotReady);
  ASSERT_TRUE(Submit(a.stream, Work::Kernel(kNsPerMs, 1)));
  EXPECT_EQ(machine_->QueryStream(gone, 1), Code::kNotReady);  // destroyed, and still at work
  EXPECT_EQ(machine_->WaitStream(other), Code::kOk);
  EXPECT_EQ(clock_.NowNs(), 7 * kNsPerMs);
  EXPECT_EQ(machine_->QueryStream(gone, 1), Code::kInvalidHandle);
}

}  // namespace
}  // namespace prorata::simgpu
