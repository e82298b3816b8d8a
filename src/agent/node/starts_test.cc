// The line of shares that were asked for, without what makes them.

#include "agent/node/starts.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>

#include "agent/testing/testing_share.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

// One device of 8 GiB, of which `free` may be given.
class TestHost final : public Starts::Host {
 public:
  TestHost(testing::TestShares& shares, VirtualClock& clock) : shares_(shares), clock_(clock) {}

  void AwaitName(const std::optional<std::string>&, std::function<void()> then) override {
    clock_.Advance(naming_ns);
    if (std::exchange(holds_name, false)) {
      held = std::move(then);
    } else {
      then();
    }
  }
  void RefreshFigures(std::function<void()> then) override { then(); }
  void GatherMemory() override { ++served; }
  std::vector<api::DeviceStatus> DescribeDevices() override {
    api::DeviceStatus status;
    status.uuid = testing::kUuid;
    status.total_bytes = 8 * kGiB;
    return {status};
  }
  std::optional<Result<Share*>> FindMade(const api::ShareSpec&, const Peer&) override { return {}; }
  Status MayName(const api::ShareSpec&) override { return {}; }
  Result<Share*> Make(const api::ShareSpec& spec, const Peer&,
                      const std::vector<api::DeviceStatus>& devices) override {
    if (!devices[0].kept_for.empty()) return Fail("others_wait", devices[0].kept_for + " waits");
    const uint64_t bytes = spec.memory->Of(8 * kGiB);
    if (bytes > free) return Fail("memory_exceeded", "it is full; ask for less");
    free -= bytes;
    return &shares_.Add(*spec.name, {0}, bytes);
  }
  void Keep(Share& made, Starts::OnShare then) override { kept.push_back({&made, then}); }
  void Abandon(Share& made) override {
    free += made.config().devices[0].memory_bytes;
    shares_.table().Remove(made.id());
  }

  uint64_t free = 8 * kGiB;
  int served = 0;
  int64_t naming_ns = 0;  // that the fresh figures take
  bool holds_name = false;
  std::function<void()> held;
  std::deque<std::pair<Share*, Starts::OnShare>> kept;  // that are being written

  void Written() {
    const auto [share, then] = kept.front();
    kept.pop_front();
    then(share);
  }

 private:
  testing::TestShares& shares_;
  VirtualClock& clock_;
};

class StartsTest : public ::testing::Test {
 protected:
  StartsTest() {
    starts_.on_refused = [this] { ++refused_; };
  }
  uint64_t Create(const std::string& name, uint64_t gib, std::optional<api::StartWait> wait = {}) {
    const uint64_t ticket = Ask(name, gib, wait);
    Run();
    return ticket;
  }
  uint64_t Ask(const std::string& name, uint64_t gib, std::optional<api::StartWait> wait) {
    api::ShareSpec spec;
    spec.name = name;
    spec.memory = gib * kGiB;
    return starts_.Create(
        spec, Peer{},
        [this, name](Result<Share*> share) {
          answers_.push_back(name + ": " + (share ? "made" : share.error().code));
          if (!share) why_ = share.error().message;
        },
        wait,
        [this, name](const api::WaitingShare& at) {
          places_.push_back(name + ": " + std::to_string(at.place));
        });
  }
  void Run() {
    loop_.restart();
    loop_.poll();
  }
  using Strings = std::vector<std::string>;

  boost::asio::io_context loop_;
  VirtualClock clock_;
  Events events_{clock_, [] { return int64_t{0}; }};
  testing::TestShares shares_;
  TestHost host_{shares_, clock_};
  Starts starts_{loop_, clock_, shares_.table(), host_, events_};
  Strings answers_;
  Strings places_;
  std::string why_;  // the last was refused
  int refused_ = 0;
};

TEST_F(StartsTest, WithoutWaitItIsRefusedAtOnce) {
  host_.free = kGiB;
  Create("a", 2);
  EXPECT_EQ(answers_, Strings{"a: memory_exceeded"});
  EXPECT_EQ(refused_, 1);
  EXPECT_TRUE(starts_.empty());
  EXPECT_TRUE(places_.empty());
}

TEST_F(StartsTest, ItIsAnsweredOnceItIsWritten) {
  Create("a", 2);
  EXPECT_TRUE(answers_.empty());
  EXPECT_FALSE(starts_.empty());
  host_.Written();
  EXPECT_EQ(answers_, Strings{"a: made"});
  EXPECT_TRUE(starts_.empty());
}

TEST_F(StartsTest, ThoseThatWaitAreMadeInTheirOrderWhenThereIsMemory) {
  host_.free = kGiB;
  Create("a", 4, api::StartWait{});
  Create("b", 2, api::StartWait{});
  EXPECT_EQ(places_, (Strings{"a: 1", "b: 2"}));
  EXPECT_EQ(starts_.CountWaiting(), 2u);
  host_.free = 4 * kGiB;
  starts_.ServeSoon();
  Run();
  ASSERT_EQ(host_.kept.size(), 1u) << "only the first fits";
  EXPECT_EQ(host_.kept.front().first->config().name, "a");
  EXPECT_EQ(places_.back(), "b: 1");
  host_.Written();
  EXPECT_EQ(answers_, Strings{"a: made"});
}

TEST_F(StartsTest, WhoGivesUpWhileItIsWrittenLeavesNoShare) {
  const uint64_t ticket = Create("a", 2, api::StartWait{});
  ASSERT_EQ(host_.kept.size(), 1u);
  starts_.GiveUp(ticket);
  EXPECT_FALSE(starts_.empty()) << "it is still being written";
  host_.Written();
  EXPECT_TRUE(answers_.empty()) << "nobody is there to be answered";
  EXPECT_TRUE(shares_.table().empty());
  EXPECT_TRUE(starts_.empty());
  EXPECT_EQ(refused_, 1);
}

TEST_F(StartsTest, WhoGivesUpInLineLetsTheNextOn) {
  host_.free = 3 * kGiB;
  const uint64_t first = Create("a", 4, api::StartWait{});
  Create("b", 4, api::StartWait{});
  starts_.GiveUp(first);
  Run();
  EXPECT_EQ(places_.back(), "b: 1");
  EXPECT_EQ(starts_.CountWaiting(), 1u);
}

TEST_F(StartsTest, NobodyIsServedBeforeThoseOfTheAgentBeforeAreBack) {
  starts_.AwaitReturn(1);
  EXPECT_EQ(starts_.CountWaiting(), 1u) << "an agent after this one awaits it, too";
  Create("new", 5, api::StartWait{});
  EXPECT_TRUE(host_.kept.empty());
  Create("back", 5, api::StartWait{.since_ms = 1});
  ASSERT_EQ(host_.kept.size(), 1u);
  EXPECT_EQ(host_.kept.front().first->config().name, "back") << "it came first";
  EXPECT_EQ(places_, Strings{"new: 1"});
}

TEST_F(StartsTest, ThoseThatDoNotComeBackLoseTheirPlace) {
  starts_.AwaitReturn(1);
  Create("new", 5, api::StartWait{});
  clock_.Advance(2 * kNsPerS);
  EXPECT_EQ(starts_.CountWaiting(), 0u);
  starts_.ServeSoon();
  Run();
  EXPECT_EQ(host_.kept.size(), 1u);
}

TEST_F(StartsTest, WhoseTimeIsOverIsRefused) {
  host_.free = kGiB;
  Create("a", 4, api::StartWait{.within_ms = 500});
  clock_.Advance(499 * kNsPerMs);
  starts_.ServeSoon();
  Run();
  EXPECT_TRUE(answers_.empty());
  clock_.Advance(kNsPerMs);
  starts_.ServeSoon();
  Run();
  EXPECT_EQ(answers_, Strings{"a: timed_out"});
  EXPECT_EQ(refused_, 1);
}

// The time before it is in line, for the figures, is part of its wait.
TEST_F(StartsTest, WhatItWaitedIsWhatItWasGiven) {
  host_.free = kGiB;
  host_.naming_ns = 20 * kNsPerMs;
  Create("a", 4, api::StartWait{.within_ms = 1000});
  EXPECT_EQ(starts_.Describe().at(0).waited_ms, 20u);
  clock_.Advance(980 * kNsPerMs);
  starts_.ServeSoon();
  Run();
  EXPECT_NE(why_.find("it waited 1s and is first in line"), std::string::npos) << why_;
}

TEST_F(StartsTest, WhoAskedFirstIsFirstEvenIfItsFiguresCameLater) {
  host_.free = kGiB;
  host_.holds_name = true;
  Create("a", 4, api::StartWait{});
  Create("b", 4, api::StartWait{});
  host_.held();
  Run();
  EXPECT_EQ(starts_.Describe().at(0).name, "a");
}

TEST_F(StartsTest, ThoseThatComeAtOnceAreServedAtOnce) {
  host_.free = kGiB;
  for (int i = 0; i < 90; ++i) Ask("a" + std::to_string(i), 4, api::StartWait{});
  Run();
  EXPECT_EQ(places_.size(), 90u);
  EXPECT_EQ(places_.back(), "a89: 90");
  EXPECT_EQ(host_.served, 1);
}

TEST_F(StartsTest, ANameThatWaitsIsInUse) {
  host_.free = kGiB;
  Create("a", 4, api::StartWait{});
  Create("a", 2, api::StartWait{});
  EXPECT_EQ(answers_, Strings{"a: name_in_use"});
}

}  // namespace
}  // namespace prorata::agent
