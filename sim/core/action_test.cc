#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/core/machine.h"

// What the executor runs, on a virtual clock: kernels do not wait for it, the host and the data do.

namespace prorata::simgpu {
namespace {

constexpr int64_t kKernelNs = kNsPerMs;

class ActionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MachineConfig config = DefaultMachineConfig();
    config.devices[0].switch_cost_ns = 0;
    config.devices[0].launch_latency_ns = 0;
    machine_ = Machine::MakeLocal(config, &clock_);
    process_ = *machine_->RegisterProcess(1);
    context_ = *machine_->CreateContext(process_, 0);
    stream_ = *machine_->CreateStream(context_, StreamKind::kNonBlocking);
    other_ = *machine_->CreateStream(context_, StreamKind::kNonBlocking);
    event_ = *machine_->CreateEvent(context_);
  }
  void TearDown() override { EXPECT_EQ(machine_->CheckInvariants(), ""); }

  void Submit(Handle stream, std::vector<Work> work) {
    ASSERT_TRUE(machine_->Submit(stream, work).has_value());
  }
  static Work Kernel(uint64_t token, int64_t duration_ns = kKernelNs) {
    return Work::Kernel(duration_ns, 100'000, token);
  }
  Action Next() {
    const auto action = machine_->NextAction(process_);
    EXPECT_TRUE(action) << static_cast<int>(action.error());
    EXPECT_EQ(machine_->CheckInvariants(), "");
    return action.value_or(Action{});
  }
  void Complete(const Action& action) {
    EXPECT_EQ(machine_->CompleteAction(action), Code::kOk) << action.token;
    EXPECT_EQ(machine_->CheckInvariants(), "");
  }
  // The tokens of all that is left, in the order in which they are handed out.
  std::vector<uint64_t> Drain() {
    std::vector<uint64_t> tokens;
    while (const auto action = machine_->NextAction(process_)) {
      tokens.push_back(action->token);
      Complete(*action);
    }
    return tokens;
  }

  VirtualClock clock_;
  std::unique_ptr<Machine> machine_;
  Handle process_ = 0;
  Handle context_ = 0;
  Handle stream_ = 0;
  Handle other_ = 0;
  Handle event_ = 0;
};

using Tokens = std::vector<uint64_t>;

TEST_F(ActionTest, KernelsFollowEachOtherHoweverLateTheExecutorIs) {
  Submit(stream_, {Kernel(1), Kernel(2)});
  const Action first = Next();
  EXPECT_EQ(clock_.NowNs(), kKernelNs);
  clock_.Advance(kKernelNs / 2);
  Complete(first);
  EXPECT_EQ(machine_->QueryStream(stream_, 1), Code::kOk);
  const Action second = Next();
  EXPECT_EQ(second.started_ns, kKernelNs);
  EXPECT_EQ(second.ended_ns, 2 * kKernelNs);
  EXPECT_EQ(clock_.NowNs(), 2 * kKernelNs);
  EXPECT_EQ(*machine_->ContextBusyNs(context_), 2 * kKernelNs);
  clock_.Advance(kKernelNs / 2);
  EXPECT_EQ(machine_->QueryStream(stream_), Code::kNotReady);
  EXPECT_EQ(machine_->QueryContext(context_), Code::kNotReady);
  EXPECT_EQ(machine_->WaitStream(stream_), Code::kStuck) << "only the executor can end this";
  EXPECT_EQ(machine_->WaitContext(context_, clock_.NowNs() + 1), Code::kTimedOut);
  Complete(second);
  EXPECT_EQ(machine_->QueryStream(stream_), Code::kOk);
  EXPECT_EQ(machine_->QueryContext(context_), Code::kOk);
  EXPECT_EQ(machine_->CompleteAction(second), Code::kInvalidValue) << "once only";
}

TEST_F(ActionTest, AnEventIsSeenWhenTheKernelsBeforeItHaveRunAndTellsDeviceTime) {
  const Handle start = *machine_->CreateEvent(context_);
  Submit(stream_, {Work::Record(start), Kernel(1), Work::Record(event_), Kernel(2)});
  clock_.Advance(5 * kKernelNs);
  EXPECT_EQ(machine_->QueryEvent(start), Code::kOk) << "no kernel before it";
  EXPECT_EQ(machine_->QueryEvent(event_), Code::kNotReady);
  EXPECT_EQ(machine_->ElapsedNs(start, event_).error(), Code::kNotReady);
  Complete(Next());
  EXPECT_EQ(machine_->QueryEvent(event_), Code::kOk) << "the second kernel comes after it";
  EXPECT_EQ(machine_->WaitEvent(event_), Code::kOk);
  EXPECT_EQ(machine_->ElapsedNs(start, event_).value(), kKernelNs);
  EXPECT_EQ(machine_->QueryStream(stream_), Code::kNotReady);
  EXPECT_EQ(Drain(), Tokens{2});
}

TEST_F(ActionTest, WorkBehindAnEventWaitRunsAfterWhatItWaitedFor) {
  Submit(stream_, {Kernel(1), Work::Record(event_)});
  Submit(other_, {Work::WaitFor(event_), Kernel(2, 1), Work::Copy(WorkKind::kCopyToHost, 1, 3)});
  Submit(stream_, {Kernel(4)});
  clock_.Advance(10 * kKernelNs);
  // The copy holds its stream up, not the device: the last kernel is left behind after it.
  EXPECT_EQ(machine_->QueryStream(other_), Code::kNotReady);
  EXPECT_EQ(Drain(), (Tokens{1, 2, 3, 4}));
}

TEST_F(ActionTest, AStreamThatOnlyWaitedForAKernelIsNotDoneBeforeItHasRun) {
  Submit(stream_, {Kernel(1), Work::Record(event_)});
  Submit(other_, {Work::WaitFor(event_)});
  const Action action = Next();
  EXPECT_EQ(machine_->QueryStream(other_), Code::kNotReady);
  Complete(action);
  EXPECT_EQ(machine_->QueryStream(other_), Code::kOk);
}

TEST_F(ActionTest, TheLegacyStreamRunsAfterTheBlockingOnesItWaitedFor) {
  const Handle blocking = *machine_->CreateStream(context_, StreamKind::kBlocking);
  const Handle legacy = *machine_->CreateStream(context_, StreamKind::kLegacy);
  Submit(blocking, {Kernel(1, 2 * kKernelNs)});
  Submit(stream_, {Kernel(2)});
  Submit(legacy, {Kernel(3, 1)});
  clock_.Advance(10 * kKernelNs);
  EXPECT_EQ(Drain(), (Tokens{2, 1, 3}));
}

TEST_F(ActionTest, NoActionIsHandedOutBesideAnother) {
  Submit(stream_, {Kernel(1)});
  Submit(other_, {Kernel(2)});
  const Action first = Next();
  EXPECT_EQ(machine_->NextAction(process_).error(), Code::kStuck);
  EXPECT_EQ(machine_->DeferAction(first), Code::kInvalidValue) << "a kernel keeps its turn";
  Complete(first);
  EXPECT_EQ(Drain(), Tokens{2});
}

TEST_F(ActionTest, ADeferredActionHoldsItsStreamAndNobodyElse) {
  Submit(stream_, {Work::Host(1), Kernel(2)});
  Submit(other_, {Kernel(3)});
  const Action wait = Next();
  EXPECT_EQ(wait.token, 1u);
  EXPECT_EQ(machine_->DeferAction(wait), Code::kOk);
  EXPECT_EQ(machine_->DeferAction(wait), Code::kOk) << "still not";
  EXPECT_EQ(machine_->CheckInvariants(), "");
  EXPECT_EQ(Drain(), Tokens{3});
  EXPECT_EQ(machine_->QueryStream(other_), Code::kOk);
  EXPECT_EQ(machine_->QueryStream(stream_), Code::kNotReady);
  Complete(wait);
  EXPECT_EQ(Drain(), Tokens{2});
  EXPECT_EQ(machine_->QueryStream(stream_), Code::kOk);
}

TEST_F(ActionTest, WhatIsLeftBehindCountsInTheQueue) {
  for (uint32_t i = 0; i < Machine::kQueueDepth; ++i) Submit(stream_, {Kernel(i + 1, 1)});
  clock_.Advance(kNsPerS);
  EXPECT_EQ(machine_->Submit(stream_, Work::Kernel(1)).error(), Code::kFull);
  EXPECT_EQ(machine_->WaitForRoom(stream_), Code::kStuck);
  Complete(Next());
  EXPECT_EQ(machine_->WaitForRoom(stream_), Code::kOk) << "one is enough, and does for one";
  EXPECT_EQ(machine_->WaitForRoom(stream_, 2), Code::kStuck);
  Submit(stream_, {Work::Kernel(1)});
}

TEST_F(ActionTest, ADestroyedStreamsKernelsStillRunAndTheContextWaitsForThem) {
  Submit(stream_, {Kernel(1), Kernel(2)});
  const Action first = Next();
  EXPECT_EQ(machine_->DestroyStream(stream_), Code::kOk);
  clock_.Advance(kNsPerS);
  EXPECT_EQ(machine_->QueryContext(context_), Code::kNotReady);
  Complete(first);
  EXPECT_EQ(Drain(), Tokens{2});
  EXPECT_EQ(machine_->QueryContext(context_), Code::kOk);
}

TEST_F(ActionTest, ADestroyedContextsActionsAreDroppedAndOthersGoOn) {
  const Handle second = *machine_->CreateContext(process_, 0);
  const Handle stream = *machine_->CreateStream(second, StreamKind::kBlocking);
  Submit(stream_, {Kernel(1), Kernel(2), Work::Host(3)});
  Submit(other_, {Work::Host(4)});
  Submit(stream, {Kernel(5)});
  const Action host = Next();
  EXPECT_EQ(host.token, 4u);
  clock_.Advance(kNsPerS);
  EXPECT_EQ(machine_->QueryStream(stream), Code::kNotReady);
  EXPECT_EQ(machine_->DestroyContext(context_), Code::kOk);
  EXPECT_EQ(machine_->CheckInvariants(), "");
  EXPECT_EQ(machine_->CompleteAction(host), Code::kInvalidHandle);
  EXPECT_EQ(Drain(), Tokens{5});
  EXPECT_EQ(machine_->QueryStream(stream), Code::kOk);
}

}  // namespace
}  // namespace prorata::simgpu
