// What DeviceLeases shows a policy, and the figures of the last second.

#include "agent/compute/device_leases.h"
#include "base/units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace prorata::agent {
namespace {

// Does as the test says.
class Scripted final : public policy::LeasePolicy {
 public:
  void Add(Key, const policy::ComputeTerms&, const Work&, int64_t) override { Charge(); }
  void Remove(Key, int64_t) override { Charge(); }
  void ResumeLimit(Key share, double tokens_ns) override { resumed[share] = tokens_ns; }
  void SetTerms(Key, const policy::ComputeTerms&, int64_t) override { Charge(); }
  std::vector<Correction> Audit(const std::vector<Look>&, int64_t) override {
    Charge();
    return {};
  }
  void Observe(Key share, const Work& work) override { observed[share] = work; }
  void Wanted(Key share, int64_t) override { events.emplace_back('w', share); }
  void Idle(Key share, int64_t) override { events.emplace_back('i', share); }
  void Drained(Key share, int64_t, int64_t) override { events.emplace_back('d', share); }
  Decisions Decide(int64_t) override { return std::exchange(next, {}); }
  ShareState State(Key share) const override {
    const auto found = states.find(share);
    return found == states.end() ? ShareState{} : found->second;
  }

  Decisions next;
  std::vector<std::pair<char, Key>> events;
  std::map<Key, ShareState> states;
  std::map<Key, Work> observed;
  std::map<Key, double> resumed;
  uint64_t charged_ns = 0;  // the first share's, until anything was said last

 private:
  void Charge() { charged_ns = observed[1].occupied_total_ns; }
};

using Phase = policy::LeasePolicy::Phase;

// Two shares with a member each, which is connected and has launched something.
class LatelyTest : public ::testing::Test {
 protected:
  struct Program {
    shm::DeviceLimits limits{};
    shm::DeviceUsage usage{};
    ShareTime time{&limits};
  };

  void SetUp() override {
    for (const uint64_t key : {1, 2}) {
      Program& program = programs_[key - 1];
      program.time.Admit(0);
      program.time.SetUsage(0, &program.usage);
      program.time.SetConnected(0, true);
      program.usage.launches = 1;
      leases_.Add(key, program.time, {}, 0);
    }
    leases_.Sample(0);
  }

  void Lease(uint64_t key, bool open) { policy_->next.changes.push_back({key, open, true}); }
  DeviceLeases::Recent Lately(uint64_t key, int64_t now_ns) {
    return leases_.Lately(key, now_ns).value();
  }

  Program programs_[2];
  Scripted* policy_ = new Scripted;  // the leases own it
  DeviceLeases leases_{std::unique_ptr<policy::LeasePolicy>(policy_)};
};

// Whatever is said at a new time, the policy charges for the time before.
TEST_F(LatelyTest, WhatMembersPublishIsShownBeforeAnythingIsSaid) {
  Program third;
  const std::function<void(int64_t)> say[] = {
      [&](int64_t now_ns) { leases_.SetTerms(2, {}, now_ns); },
      [&](int64_t now_ns) { leases_.Audit({}, now_ns); },
      [&](int64_t now_ns) { leases_.Add(3, third.time, {}, now_ns); },
      [&](int64_t now_ns) { leases_.Remove(3, now_ns); },
  };
  programs_[0].usage.occupied_since_ns = 1;
  int64_t now_ns = 1;
  for (const auto& one : say) {
    one(now_ns += kMs);
    EXPECT_EQ(policy_->charged_ns, static_cast<uint64_t>(now_ns - 1));
  }
}

// By the same agent, or by another one that finds the share's files.
TEST_F(LatelyTest, WhatIsLeftOfALimitIsKnownAfterAnOutage) {
  EXPECT_TRUE(policy_->resumed.empty()) << "nothing was noted yet";
  policy_->states[1].limit_tokens_ns = -5.0 * kMs;
  policy_->states[2].limit_tokens_ns = 2.0 * kMs;
  leases_.Reschedule(kMs);
  leases_.ResetAfterOutage(2 * kMs);
  const std::map<uint64_t, double> noted = {{1, -5.0 * kMs}, {2, 2.0 * kMs}};
  EXPECT_EQ(policy_->resumed, noted);
  leases_.Remove(1, 3 * kMs);
  policy_->resumed.clear();
  ShareTime found(&programs_[0].limits);
  leases_.Add(1, found, {}, 4 * kMs);
  EXPECT_EQ(policy_->resumed, (std::map<uint64_t, double>{{1, -5.0 * kMs}}));
}

TEST_F(LatelyTest, MembersAreToldWhoRunsBesideThem) {
  const auto& together = programs_[0].limits.together;
  leases_.Reschedule(0);
  EXPECT_EQ(together, shm::kNotTogether);
  policy_->states[1].in_slices = true;  // and no lease changes
  leases_.Reschedule(kMs);
  EXPECT_EQ(together, shm::kInSlices);
  policy_->states[1].co_running = true;
  leases_.Reschedule(2 * kMs);
  EXPECT_EQ(together, shm::kInGaps);
  policy_->states[1] = {};
  leases_.Reschedule(3 * kMs);
  EXPECT_EQ(together, shm::kNotTogether);
}

// Known to have drained, and not yet to wait, a busy share would count as gone.
TEST_F(LatelyTest, ThatAShareWaitsIsSaidBeforeThatItHasDrained) {
  policy_->states[1].phase = Phase::kDraining;
  programs_[0].usage.waiting = 1;
  programs_[0].usage.drained_sequence = programs_[0].limits.lease >> shm::kLeaseSequenceShift;
  policy_->events.clear();
  leases_.Reschedule(kMs);
  const std::vector<std::pair<char, uint64_t>> expected = {{'w', 1}, {'d', 1}};
  EXPECT_EQ(policy_->events, expected);
}

TEST_F(LatelyTest, ADrainIsOfOneLease) {
  policy_->states[1].phase = Phase::kDraining;
  programs_[0].usage.drained_sequence = programs_[0].limits.lease >> shm::kLeaseSequenceShift;
  Lease(1, true);
  leases_.Reschedule(kMs);
  Lease(1, false);
  leases_.Reschedule(kMs);
  policy_->events.clear();
  leases_.Reschedule(2 * kMs);
  EXPECT_TRUE(policy_->events.empty()) << "it was drained two leases ago";
}

// A member that reports under a lease for a few launches, and makes them then, has not drained.
TEST_F(LatelyTest, ALeaseForAFewLaunchesHasNotDrainedBeforeItIsClosed) {
  policy_->next.changes.push_back({.share = 1, .open = true, .launches = 2});
  const DeviceLeases::Outcome outcome = leases_.Reschedule(kMs);
  ASSERT_EQ(outcome.changes.size(), 1U);
  Program& program = programs_[0];
  EXPECT_EQ(program.limits.lease & shm::kLeaseOpen, 0U);
  EXPECT_EQ(shm::ExtraLaunches(program.limits, program.limits.lease), 2U);
  EXPECT_TRUE(program.time.open());
  program.usage.drained_sequence = outcome.changes[0].sequence;
  policy_->states[1].phase = Phase::kDraining;  // revoked, and it is not written yet
  policy_->events.clear();
  policy_->next.changes.push_back({.share = 1});
  leases_.Reschedule(2 * kMs);
  EXPECT_FALSE(program.time.open());
  EXPECT_TRUE(policy_->events.empty());
  program.usage.drained_sequence = program.limits.lease >> shm::kLeaseSequenceShift;
  leases_.Reschedule(3 * kMs);
  const std::vector<std::pair<char, uint64_t>> expected = {{'d', 1}};
  EXPECT_EQ(policy_->events, expected);
}

// Whoever has a request may want the device at any moment, once a program is there.
TEST_F(LatelyTest, AShareWithoutAProgramBoundsNobodysBacklog) {
  Program& neighbour = programs_[0];
  const uint32_t alone_us = neighbour.limits.backlog_alone_us;
  Program other;
  leases_.Add(3, other.time, {{200'000}, Fraction::One(), 1}, kMs);
  EXPECT_EQ(neighbour.limits.backlog_alone_us, alone_us);
  other.time.Admit(0);
  other.time.SetUsage(0, &other.usage);
  policy_->states[1].backlog_ns = 3 * kMs;
  leases_.Reschedule(50 * kMs);
  leases_.Sample(100 * kMs);
  EXPECT_LT(neighbour.limits.backlog_alone_us, alone_us);
  EXPECT_EQ(neighbour.limits.backlog_contended_us, 3'000u) << "what the policy says stays";
  other.time.Depart(0);
  leases_.Sample(200 * kMs);
  EXPECT_EQ(neighbour.limits.backlog_alone_us, alone_us);
  leases_.Remove(3, 300 * kMs);
}

TEST_F(LatelyTest, MembersAreToldHowLongAPauseIsNoIdleness) {
  leases_.Reschedule(kMs);
  EXPECT_EQ(programs_[0].limits.idle_report_us, 200u);
  policy_->states[1].idle_report_ns = kMs;
  leases_.Reschedule(2 * kMs);
  EXPECT_EQ(programs_[0].limits.idle_report_us, 1'000u);
  EXPECT_EQ(programs_[1].limits.idle_report_us, 200u);
}

TEST_F(LatelyTest, IdlenessIsBelievedOfAContendedLeaseOnly) {
  Lease(1, true);
  leases_.Reschedule(kMs);
  programs_[0].time.SaidIdle(0, programs_[0].limits.lease >> shm::kLeaseSequenceShift);
  policy_->events.clear();
  leases_.Reschedule(2 * kMs);
  const std::vector<std::pair<char, uint64_t>> expected = {{'i', 1}};
  EXPECT_EQ(policy_->events, expected);
  programs_[0].usage.launches = 2;
  policy_->events.clear();
  leases_.Reschedule(3 * kMs);
  EXPECT_TRUE(policy_->events.empty()) << "it has launched since";
}

TEST_F(LatelyTest, NothingIsKnownOfNobodyAndOfNow) {
  EXPECT_FALSE(leases_.Lately(3, 100 * kMs).has_value());
  EXPECT_FALSE(leases_.Lately(1, 0).has_value());
}

TEST_F(LatelyTest, GpuTimeIsWhatWasChargedAndBusyWhatRan) {
  policy_->states[1].charged_ns = 60e6;
  policy_->states[2].charged_ns = 20e6;
  programs_[0].usage.device_time_ns = 30 * kMs;
  leases_.Reschedule(100 * kMs);
  EXPECT_DOUBLE_EQ(Lately(1, 100 * kMs).gpu_time, 0.6);
  EXPECT_DOUBLE_EQ(Lately(1, 100 * kMs).busy, 0.3);
  EXPECT_DOUBLE_EQ(Lately(2, 100 * kMs).gpu_time, 0.2);
  EXPECT_DOUBLE_EQ(leases_.GpuTime(), 0.8);
}

// Nothing may happen for a tenth of a second: both hold their leases, say.
TEST_F(LatelyTest, GpuTimeIsOfTheTimeThatWasCharged) {
  for (int64_t now_ns = 0; now_ns <= 1'000 * kMs; now_ns += 100 * kMs) {
    leases_.Sample(now_ns);
    for (const uint64_t key : {1, 2}) {
      policy_->states[key].charged_ns = static_cast<double>(now_ns) / 2;
    }
    leases_.Reschedule(now_ns);
    for (const int64_t later_ns : {int64_t{0}, 99 * kMs}) {
      if (now_ns == 0) continue;
      EXPECT_DOUBLE_EQ(Lately(1, now_ns + later_ns).gpu_time, 0.5) << now_ns << "+" << later_ns;
      EXPECT_DOUBLE_EQ(leases_.GpuTime(), 1);
    }
  }
}

TEST_F(LatelyTest, ChargesGoOnOverAnOutage) {
  policy_->states[1].charged_ns = 60e6;
  leases_.ResetAfterOutage(50 * kMs);
  policy_->states[1].charged_ns = 10e6;
  leases_.Reschedule(100 * kMs);
  EXPECT_EQ(leases_.ChargedNs(1), 70'000'000u);
}

TEST_F(LatelyTest, WhoWaitsForOthersAndWhoForItsLimit) {
  programs_[0].usage.waiting = 1;
  programs_[1].usage.waiting = 1;
  policy_->states[2].at_limit = true;
  leases_.Reschedule(100 * kMs);
  Lease(1, true);
  leases_.Reschedule(150 * kMs);
  leases_.Reschedule(200 * kMs);
  EXPECT_DOUBLE_EQ(Lately(1, 200 * kMs).waiting, 0.25);
  EXPECT_EQ(Lately(1, 200 * kMs).at_limit, 0);
  EXPECT_EQ(Lately(2, 200 * kMs).waiting, 0);
  EXPECT_DOUBLE_EQ(Lately(2, 200 * kMs).at_limit, 0.5);
}

// Seen in `prorata top`: a share had its limit to the tenth of a point for minutes, and was said to
// wait for the others.
TEST_F(LatelyTest, WhoHasItsLimitBySlicesAloneIsHeldByIt) {
  leases_.SetTerms(2, {Fraction::Zero(), {200'000}, 1}, 0);
  policy_->states[2].entitled = 0.2;
  programs_[0].usage.waiting = programs_[1].usage.waiting = 1;
  const auto wait_until = [this](int64_t now_ns, double lag_ns) {
    leases_.Reschedule(now_ns);
    policy_->states[2].lag_ns = lag_ns;
    leases_.Reschedule(now_ns);
  };
  wait_until(0, -kMs);
  wait_until(50 * kMs, kMs);  // it is owed something: now the others hold it back
  leases_.Reschedule(150 * kMs);
  policy_->states[2].lag_ns = 0;
  policy_->states[2].entitled = 0.1;  // of the others it is that it has no more
  leases_.Reschedule(150 * kMs);
  leases_.Reschedule(200 * kMs);
  EXPECT_DOUBLE_EQ(Lately(2, 200 * kMs).at_limit, 0.25);
  EXPECT_DOUBLE_EQ(Lately(2, 200 * kMs).waiting, 0.75);
  EXPECT_EQ(Lately(1, 200 * kMs).at_limit, 0) << "it has none";
}

TEST_F(LatelyTest, WhatStillRunsIsNoWaiting) {
  programs_[0].usage.waiting = 1;
  programs_[0].usage.backlog_ns = kMs;
  policy_->states[1].phase = Phase::kDraining;
  leases_.Reschedule(100 * kMs);
  leases_.Reschedule(200 * kMs);
  EXPECT_EQ(Lately(1, 200 * kMs).waiting, 0);
  EXPECT_EQ(Lately(1, 200 * kMs).stalled, 0);
  policy_->states[1].phase = Phase::kStalled;
  leases_.Reschedule(200 * kMs);
  leases_.Reschedule(400 * kMs);
  EXPECT_EQ(Lately(1, 400 * kMs).waiting, 0);
  EXPECT_DOUBLE_EQ(Lately(1, 400 * kMs).stalled, 0.5);
}

TEST_F(LatelyTest, TheWindowIsASecond) {
  programs_[0].usage.waiting = 1;
  for (int64_t now = 100 * kMs; now <= 1000 * kMs; now += 100 * kMs) {
    leases_.Reschedule(now);
    leases_.Sample(now);
  }
  EXPECT_DOUBLE_EQ(Lately(1, 1000 * kMs).waiting, 0.9);  // it was not seen before
  programs_[0].usage.waiting = 0;
  for (int64_t now = 1100 * kMs; now <= 2100 * kMs; now += 100 * kMs) {
    leases_.Reschedule(now);
    leases_.Sample(now);
  }
  EXPECT_EQ(Lately(1, 2100 * kMs).waiting, 0);
}

TEST_F(LatelyTest, AYoungShareIsJudgedByItsOwnLife) {
  leases_.Sample(400 * kMs);
  Program young;
  young.time.Admit(0);
  young.time.SetUsage(0, &young.usage);
  young.time.SetConnected(0, true);
  young.usage.waiting = 1;
  leases_.Add(3, young.time, {}, 500 * kMs);
  EXPECT_FALSE(leases_.Lately(3, 500 * kMs).has_value());
  leases_.Sample(500 * kMs);
  EXPECT_DOUBLE_EQ(Lately(3, 600 * kMs).waiting, 0);  // not seen since
  leases_.Reschedule(600 * kMs);
  EXPECT_DOUBLE_EQ(Lately(3, 600 * kMs).waiting, 1);
  leases_.Remove(3, 600 * kMs);
  EXPECT_FALSE(leases_.Lately(3, 700 * kMs).has_value());
}

}  // namespace
}  // namespace prorata::agent
