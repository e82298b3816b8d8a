// What DeviceTrace writes, of the real policy's decisions and of states that are made up.

#include "agent/compute/device_trace.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "agent/compute/device_leases.h"
#include "base/units.h"

namespace prorata::agent {
namespace {

using api::TraceEntry;
using api::TraceKind;
using api::TraceMode;
using api::TraceState;
using Phase = policy::LeasePolicy::Phase;
using ShareState = policy::LeasePolicy::ShareState;

ShareState In(Phase phase, double lag_ns = 0) {
  ShareState state;
  state.phase = phase;
  state.lag_ns = lag_ns;
  return state;
}

TraceState Judge(const DeviceTrace::Seen& seen, const std::vector<DeviceTrace::Seen>& beside) {
  DeviceTrace::Others others;
  others.Show(seen);
  for (const DeviceTrace::Seen& other : beside) others.Show(other);
  return DeviceTrace::StateOf(seen, others);
}

TEST(DeviceTrace, WhatARunningShareDoes) {
  ShareState running = In(Phase::kRunning);
  EXPECT_EQ(Judge({.state = running, .contended = true}, {}), TraceState::kRuns);
  EXPECT_EQ(Judge({.state = running}, {}), TraceState::kRunsFreely);
  running.co_running = true;
  EXPECT_EQ(Judge({.state = running, .contended = true}, {}), TraceState::kCoRuns);
  running.idle = true;
  EXPECT_EQ(Judge({.state = running, .contended = true}, {}), TraceState::kHolds);
  const ShareState stalled = In(Phase::kStalled);
  EXPECT_EQ(Judge({.state = stalled}, {}), TraceState::kStalled);
  EXPECT_EQ(Judge({.state = stalled, .blocked = true}, {}), TraceState::kBlocked);
}

TEST(DeviceTrace, WhyAShareWaits) {
  const ShareState waits = In(Phase::kRunnable), owes = In(Phase::kRunnable, -20e6);
  const ShareState running = In(Phase::kRunning), draining = In(Phase::kDraining);
  ShareState idle = running;
  idle.idle = true;
  EXPECT_EQ(Judge({.state = waits}, {{.state = running}}), TraceState::kWaitsOthers);
  EXPECT_EQ(Judge({.state = waits, .by_limit = true}, {{.state = running}}),
            TraceState::kWaitsLimit);
  EXPECT_EQ(Judge({.state = waits}, {{.state = running, .priority = 1}}),
            TraceState::kWaitsPriority);
  EXPECT_EQ(Judge({.state = waits}, {{.state = running, .priority = -1}}),
            TraceState::kWaitsOthers);
  EXPECT_EQ(Judge({.state = waits, .priority = -7}, {{.state = running, .priority = -8}}),
            TraceState::kWaitsOthers)
      << "a share that is not there has no priority";
  EXPECT_EQ(Judge({.state = waits}, {{.state = draining}}), TraceState::kWaitsDrain);
  EXPECT_EQ(Judge({.state = owes}, {{.state = idle}}), TraceState::kWaitsPause);
  ShareState gang = waits;
  gang.gang = true;
  EXPECT_EQ(Judge({.state = gang}, {}), TraceState::kWaitsGang);
  EXPECT_EQ(Judge({.state = gang}, {{.state = running}}), TraceState::kWaitsOthers);
}

TEST(DeviceTrace, OnlyWhatIsDifferentIsWritten) {
  DeviceTrace trace;
  DeviceTrace::Live live;
  trace.Begin(live, 1, 0);
  const ShareState idle = In(Phase::kIdle), running = In(Phase::kRunning, 2'500);
  const auto write = [&](const ShareState& state, int64_t charged_ns, int64_t now_ns) {
    const DeviceTrace::Seen seen = {.state = state, .contended = true, .charged_ns = charged_ns};
    DeviceTrace::Others others;
    others.Show(seen);
    trace.Write(live, seen, others, now_ns);
    trace.WriteDevice(others, now_ns);
  };
  write(idle, 0, kMs);
  EXPECT_EQ(trace.ring().last(), 1u);
  write(running, 0, 2 * kMs);
  write(running, 5, 3 * kMs);
  ASSERT_EQ(trace.ring().last(), 3u) << "the share's state and the device's mode, once";
  const TraceEntry& entry = trace.ring().At(2);
  EXPECT_EQ(entry.kind, TraceKind::kState);
  EXPECT_EQ(entry.state, TraceState::kRuns);
  EXPECT_EQ(entry.time_ns, 2 * kMs);
  EXPECT_EQ(entry.lag_us, 2);
  EXPECT_EQ(trace.ring().At(3).mode, TraceMode::kScheduled);
}

// A trace may begin anywhere, so states that go on are written again; but a device that nobody uses
// must not push what happened before out of the ring.
TEST(DeviceTrace, KeyframesOfASleeperEnd) {
  DeviceTrace trace;
  DeviceTrace::Live live;
  trace.Begin(live, 1, 0);
  ShareState state = In(Phase::kRunning);
  const auto keyframe = [&](int64_t charged_ns) {
    const DeviceTrace::Seen seen = {.state = state, .charged_ns = charged_ns};
    DeviceTrace::Others others;
    others.Show(seen);
    trace.Keyframe(live, seen, others, kMs);
    trace.KeyframeOfDevice(others, kMs);
  };
  keyframe(0);
  keyframe(0);
  EXPECT_EQ(trace.ring().last(), 5u) << "it has its lease: it and the device, each time";
  state = In(Phase::kIdle);
  keyframe(7);
  const uint64_t last = trace.ring().last();
  for (int i = 0; i < 10; ++i) keyframe(7);
  EXPECT_EQ(trace.ring().last(), last);
  keyframe(8);
  EXPECT_EQ(trace.ring().last(), last + 1) << "an audit may charge a sleeper";
}

TEST(ReadTrace, PagesAndWhatIsLostBetweenThem) {
  TraceRing ring(8);
  const uint32_t lane = ring.AddLane(3, "train");
  const auto write = [&ring, lane](int64_t time_ns) {
    TraceEntry entry = {};
    entry.time_ns = time_ns;
    entry.lane = lane;
    ring.Write(entry);
  };
  for (int i = 1; i <= 6; ++i) write(i * 1000 * kMs);
  api::TraceRequest request = {.gpu = "0", .seconds = 3};
  api::TraceReply page = ReadTrace(ring, request, 6'000 * kMs, 2);
  ASSERT_EQ(page.entries.size(), 2u);
  EXPECT_EQ(page.entries[0].time_ns, 3'000 * kMs);
  EXPECT_EQ(page.shares.at(lane).name, "train");
  EXPECT_EQ(page.last, 6u);
  EXPECT_EQ(page.next, 4u);
  request.after = page.next;
  for (int i = 7; i <= 14; ++i) write(i * 1000 * kMs);  // 7 to 14 are there
  page = ReadTrace(ring, request, 15'000 * kMs, 2);
  EXPECT_EQ(page.lost, 2u);
  EXPECT_EQ(page.entries.at(0).time_ns, 7'000 * kMs);
  request.after = 14;
  page = ReadTrace(ring, request, 15'000 * kMs);
  EXPECT_TRUE(page.entries.empty());
  EXPECT_EQ(page.next, 14u);
  request.after = 1'000;
  EXPECT_EQ(ReadTrace(ring, request, 15'000 * kMs).entries.size(), 8u) << "another agent's";
}

// The real policy, with two busy shares: one of them with a limit.
class TracedLeases : public ::testing::Test {
 protected:
  struct Program {
    shm::DeviceLimits limits{};
    shm::DeviceUsage usage{};
    ShareTime time{&limits};
  };
  void Add(uint64_t key, const policy::ComputeTerms& terms) {
    Program& program = programs_[key - 1];
    program.time.Admit(0);
    program.time.SetUsage(0, &program.usage);
    program.time.SetConnected(0, true);
    program.usage.launches = 1;
    leases_.Add(key, program.time, terms, 0);
    leases_.NameInTrace(key, key == 1 ? "a" : "limited");
  }
  // Programs that launch whenever they may, and drain at once.
  void RunUntil(int64_t end_ns) {
    for (; now_ns_ < end_ns; now_ns_ += kMs / 10) {
      for (Program& program : programs_) {
        const uint32_t lease = program.limits.lease;
        const bool open = (lease & shm::kLeaseOpen) != 0;
        program.usage.waiting = open ? 0 : 1;
        program.usage.backlog_ns = open ? kMs : 0;
        if (open) program.usage.launches += 1;  // else it would seem to be stopped
        if (!open) program.usage.drained_sequence = lease >> shm::kLeaseSequenceShift;
      }
      leases_.Reschedule(now_ns_);
      if (now_ns_ % (100 * kMs) == 0) leases_.Sample(now_ns_);
    }
  }
  std::vector<TraceEntry> Written(TraceKind kind) const {
    std::vector<TraceEntry> found;
    for (uint64_t i = leases_.trace().oldest(); i <= leases_.trace().last(); ++i) {
      if (leases_.trace().At(i).kind == kind) found.push_back(leases_.trace().At(i));
    }
    return found;
  }
  int64_t TimeIn(uint32_t lane, TraceState state) const {
    int64_t sum_ns = 0, since_ns = -1;
    for (const TraceEntry& entry : Written(TraceKind::kState)) {
      if (entry.lane != lane) continue;
      if (since_ns >= 0) sum_ns += entry.time_ns - since_ns;
      since_ns = entry.state == state ? entry.time_ns : -1;
    }
    return since_ns >= 0 ? sum_ns + now_ns_ - since_ns : sum_ns;
  }

  int64_t now_ns_ = 0;
  Program programs_[2];
  DeviceLeases leases_;
};

TEST_F(TracedLeases, OneRunsAndTheOtherIsHeldBackByItsLimit) {
  policy::ComputeTerms limited;
  limited.limit = {100'000};
  Add(1, {});
  Add(2, limited);
  RunUntil(2'000 * kMs);
  const auto charged_ns = static_cast<double>(leases_.ChargedNs(2));
  EXPECT_GT(charged_ns, 0.05 * 2e9);
  EXPECT_LT(charged_ns, 0.11 * 2e9);
  EXPECT_NEAR(static_cast<double>(TimeIn(2, TraceState::kRuns)), charged_ns, 0.005 * 2e9)
      << "it drains at once, so what it is charged is what it ran";
  EXPECT_GT(TimeIn(2, TraceState::kWaitsLimit), 1'000 * kMs);
  EXPECT_GT(TimeIn(1, TraceState::kRuns), 1'500 * kMs);
  bool held = false;
  for (const TraceEntry& entry : Written(TraceKind::kState)) {
    held = held || (entry.state == TraceState::kWaitsLimit && entry.held_us > 1'000);
  }
  EXPECT_TRUE(held) << "until when is published";
  EXPECT_EQ(Written(TraceKind::kShareBegun).size(), 2u);
}

TEST_F(TracedLeases, AuditsLateLoopsOutagesAndTheEnd) {
  policy::ComputeTerms limited;
  limited.limit = {100'000};
  Add(1, {});
  Add(2, limited);
  RunUntil(1'000 * kMs);
  // Met on the device again and again, long after its slice.
  for (int look = 0; look < 30; ++look) {
    for (const bool running : {false, true}) {
      for (int i = 0; i < 1000 && (leases_.State(2).phase == Phase::kRunning) == running; ++i) {
        RunUntil(now_ns_ + kMs);
      }
    }
    RunUntil(now_ns_ + 20 * kMs);
    leases_.Audit({{2, 200e6, now_ns_ - 7 * kMs}}, now_ns_);
    RunUntil(now_ns_ + 180 * kMs);
  }
  const auto audits = Written(TraceKind::kAudit);
  ASSERT_FALSE(audits.empty());
  EXPECT_EQ(audits.back().lane, 2u);
  EXPECT_GT(audits.back().value_ns, 10 * kMs);

  leases_.SetTerms(2, {}, now_ns_);
  leases_.SetTerms(1, {{500'000}}, now_ns_);
  RunUntil(now_ns_ + 100 * kMs);
  EXPECT_TRUE(Written(TraceKind::kLate).empty());
  now_ns_ += 50 * kMs;  // a slice ended in this time
  leases_.Reschedule(now_ns_);
  const auto late = Written(TraceKind::kLate);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_GT(late[0].value_ns, 30 * kMs);
  EXPECT_LT(late[0].value_ns, 51 * kMs);

  const uint64_t key = 2;
  leases_.TraceEvent(&key, api::EventKind::kFalseUsage, now_ns_);
  leases_.TraceEvent(nullptr, api::EventKind::kDriverSlow, now_ns_);
  const auto events = Written(TraceKind::kEvent);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].lane, 2u);
  EXPECT_EQ(events[0].event, api::EventKind::kFalseUsage);
  EXPECT_EQ(events[1].lane, 0u);

  leases_.ResetAfterOutage(now_ns_);
  EXPECT_EQ(Written(TraceKind::kOutage).size(), 1u);
  leases_.Remove(2, now_ns_);
  ASSERT_EQ(Written(TraceKind::kShareEnded).size(), 1u);
  EXPECT_EQ(leases_.trace().FindLane(2)->name, "limited");
  EXPECT_NE(leases_.trace().FindLane(2)->ended, 0u);
}

}  // namespace
}  // namespace prorata::agent
