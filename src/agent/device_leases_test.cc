// What DeviceLeases tells of the last second, with a policy that does as the test says.

#include "agent/device_leases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace prorata::agent {
namespace {

constexpr int64_t kMs = 1'000'000;

class Told final : public policy::LeasePolicy {
 public:
  void Add(Key share, const policy::ComputeTerms&, uint64_t, int64_t) override {
    keys_.push_back(share);
  }
  void Remove(Key share, int64_t) override { std::erase(keys_, share); }
  void SetTerms(Key, const policy::ComputeTerms&, int64_t) override {}
  void Report(Key, uint64_t, int64_t) override {}
  void Wanted(Key share, int64_t) override { told.push_back({'w', share}); }
  void Idle(Key, int64_t) override {}
  void Drained(Key share, int64_t) override { told.push_back({'d', share}); }
  Decisions Decide(int64_t) override { return std::move(next); }
  std::vector<Key> Shares() const override { return keys_; }
  ShareState State(Key share) const override {
    return {.passed_over = passed_over.contains(share), .entitled = entitled, .lag_ns = lag_ns};
  }
  bool Draining(Key share) const override { return draining.contains(share); }
  bool DrainUnawaited(Key share) const override { return unawaited.contains(share); }
  bool DrainForeseen(Key share) const override { return foreseen.contains(share); }
  bool AtLimit(Key share) const override { return at_limit.contains(share); }

  Decisions next;
  std::vector<std::pair<char, Key>> told;
  std::set<Key> draining, unawaited, foreseen, passed_over, at_limit;
  double entitled = 0, lag_ns = 0;  // of each

 private:
  std::vector<Key> keys_;
};

// Two shares with a member each, which is connected and has launched something.
class LatelyTest : public ::testing::Test {
 protected:
  struct Program {
    protocol::DeviceLimits limits{};
    protocol::DeviceUsage usage{};
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
  Told* policy_ = new Told;  // the leases own it
  DeviceLeases leases_{std::unique_ptr<policy::LeasePolicy>(policy_)};
};

// A member that drains in the moment in which this is taken back may have said nothing.
TEST_F(LatelyTest, ADrainThatIsAwaitedAfterAllIsLookedForAtOnce) {
  policy_->draining = policy_->unawaited = {1};
  EXPECT_EQ(leases_.Touch(kMs).next_ns, DeviceLeases::kNever);
  EXPECT_NE(programs_[0].limits.drain_unawaited, 0u);
  policy_->unawaited.clear();
  EXPECT_EQ(leases_.Touch(2 * kMs).next_ns, 2 * kMs);
  EXPECT_EQ(programs_[0].limits.drain_unawaited, 0u);
  EXPECT_EQ(leases_.Touch(3 * kMs).next_ns, DeviceLeases::kNever);
}

TEST_F(LatelyTest, AWaitThatIsAwaitedAfterAllIsLookedForAtOnce) {
  policy_->draining = policy_->unawaited = {1};
  leases_.Touch(kMs);
  policy_->draining.clear();
  policy_->unawaited.clear();
  EXPECT_EQ(leases_.Touch(2 * kMs).next_ns, DeviceLeases::kNever) << "nobody waits";
  policy_->draining = policy_->unawaited = {1};
  leases_.Touch(3 * kMs);
  policy_->draining.clear();
  policy_->unawaited.clear();
  programs_[0].usage.waiting = 1;
  EXPECT_EQ(leases_.Touch(4 * kMs).next_ns, 4 * kMs) << "it may have begun since it was looked at";
}

// Seen when a busy share's drain was first told of a turn late: known to have drained for long, and
// not yet to wait, it counted as gone, and was forgiven what it owed.
TEST_F(LatelyTest, ThatAShareWaitsIsToldBeforeThatItHasDrained) {
  policy_->draining = {1};
  programs_[0].usage.waiting = 1;
  programs_[0].usage.drained_sequence = programs_[0].limits.lease >> protocol::kLeaseSequenceShift;
  policy_->told.clear();
  leases_.Touch(kMs);
  const std::vector<std::pair<char, uint64_t>> expected = {{'w', 1}, {'d', 1}};
  EXPECT_EQ(policy_->told, expected);
}

// It waits for its turn all the while, though its last drain is not known of.
TEST_F(LatelyTest, WhoDrainsUnawaitedWaitsForItsTurn) {
  policy_->draining = policy_->unawaited = {1};
  programs_[0].usage.waiting = 1;
  leases_.Touch(0);
  leases_.Touch(50 * kMs);
  leases_.Sample(100 * kMs);
  EXPECT_NEAR(Lately(1, 100 * kMs).waiting, 1, 1e-9);
}

TEST_F(LatelyTest, NothingIsKnownOfNobodyAndOfNow) {
  EXPECT_FALSE(leases_.Lately(3, 100 * kMs).has_value());
  EXPECT_FALSE(leases_.Lately(1, 0).has_value());
}

TEST_F(LatelyTest, DeviceTimeOfTheWindow) {
  programs_[0].usage.device_time_ns = 60 * kMs;
  programs_[1].usage.device_time_ns = 20 * kMs;
  leases_.Touch(100 * kMs);
  EXPECT_DOUBLE_EQ(Lately(1, 100 * kMs).busy, 0.6);
  EXPECT_DOUBLE_EQ(Lately(1, 100 * kMs).achieved, 0.75);
  EXPECT_DOUBLE_EQ(Lately(2, 100 * kMs).achieved, 0.25);
  EXPECT_DOUBLE_EQ(leases_.Busy(100 * kMs), 0.8);
  // Two that run at once each measure the other's time.
  programs_[1].usage.device_time_ns = 120 * kMs;
  leases_.Touch(150 * kMs);
  EXPECT_EQ(leases_.Busy(150 * kMs), 1);
}

TEST_F(LatelyTest, WhoWaitsForOthersAndWhoForItsLimit) {
  programs_[0].usage.waiting = 1;
  programs_[1].usage.waiting = 1;
  policy_->at_limit = {2};
  leases_.Touch(100 * kMs);
  Lease(1, true);
  leases_.Touch(150 * kMs);
  leases_.Touch(200 * kMs);
  EXPECT_DOUBLE_EQ(Lately(1, 200 * kMs).waiting, 0.25);
  EXPECT_EQ(Lately(1, 200 * kMs).at_limit, 0);
  EXPECT_EQ(Lately(2, 200 * kMs).waiting, 0);
  EXPECT_DOUBLE_EQ(Lately(2, 200 * kMs).at_limit, 0.5);
}

// Seen in `prorata top`: a share had its limit to the tenth of a point for minutes, and was said to
// wait for its turn.
TEST_F(LatelyTest, WhoHasItsLimitByTurnsAloneIsHeldByIt) {
  leases_.SetTerms(2, {Fraction::Zero(), {200'000}, 1}, 0);
  policy_->entitled = 0.2;
  programs_[0].usage.waiting = programs_[1].usage.waiting = 1;
  const auto wait_until = [this](int64_t now_ns, double lag_ns) {
    leases_.Touch(now_ns);
    policy_->lag_ns = lag_ns;
    leases_.Touch(now_ns);
  };
  wait_until(0, -kMs);
  wait_until(50 * kMs, kMs);  // it is owed something: now the others hold it back
  leases_.Touch(150 * kMs);
  policy_->lag_ns = 0;
  policy_->entitled = 0.1;  // of the others it is that it has no more
  leases_.Touch(150 * kMs);
  leases_.Touch(200 * kMs);
  EXPECT_DOUBLE_EQ(Lately(2, 200 * kMs).at_limit, 0.25);
  EXPECT_DOUBLE_EQ(Lately(2, 200 * kMs).waiting, 0.75);
  EXPECT_EQ(Lately(1, 200 * kMs).at_limit, 0) << "it has none";
}

TEST_F(LatelyTest, WhatStillRunsIsNoWaiting) {
  programs_[0].usage.waiting = 1;
  programs_[0].usage.backlog_ns = kMs;
  policy_->draining = {1};
  leases_.Touch(100 * kMs);
  leases_.Touch(200 * kMs);
  EXPECT_EQ(Lately(1, 200 * kMs).waiting, 0);
  EXPECT_EQ(Lately(1, 200 * kMs).undrained, 0);
  policy_->passed_over = {1};
  leases_.Touch(200 * kMs);
  leases_.Touch(400 * kMs);
  EXPECT_EQ(Lately(1, 400 * kMs).waiting, 0);
  EXPECT_DOUBLE_EQ(Lately(1, 400 * kMs).undrained, 0.5);
}

TEST_F(LatelyTest, TheWindowIsASecond) {
  programs_[0].usage.waiting = 1;
  for (int64_t now = 100 * kMs; now <= 1000 * kMs; now += 100 * kMs) {
    leases_.Touch(now);
    leases_.Sample(now);
  }
  EXPECT_DOUBLE_EQ(Lately(1, 1000 * kMs).waiting, 0.9);  // it was not seen before
  programs_[0].usage.waiting = 0;
  for (int64_t now = 1100 * kMs; now <= 2100 * kMs; now += 100 * kMs) {
    leases_.Touch(now);
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
  leases_.Touch(600 * kMs);
  EXPECT_DOUBLE_EQ(Lately(3, 600 * kMs).waiting, 1);
  leases_.Remove(3, 600 * kMs);
  EXPECT_FALSE(leases_.Lately(3, 700 * kMs).has_value());
}

TEST_F(LatelyTest, WhoIsToldOfItsLease) {
  Program& program = programs_[0];
  program.usage.minds_lease = protocol::kMindsOpening | protocol::kMindsClosing;
  program.usage.backlog_ns = static_cast<uint64_t>(kMs);
  program.usage.expected_end_ns = 101 * kMs;
  EXPECT_FALSE(leases_.MindsLease(1, 0, 100 * kMs)) << "its word that it has drained is waited for";
  policy_->foreseen = {1};
  EXPECT_TRUE(leases_.MindsLease(1, 0, 100 * kMs));
  policy_->foreseen.clear();
  Lease(1, true);
  leases_.Touch(100 * kMs);
  EXPECT_FALSE(leases_.MindsLease(1, 0, 100 * kMs));
  program.usage.waiting = 1;
  EXPECT_TRUE(leases_.MindsLease(1, 0, 100 * kMs)) << "who waits sees it, foreseen or not";
}

}  // namespace
}  // namespace prorata::agent
