// What the device lost to members, against what they are charged for.

#include <unistd.h>

#include <chrono>
#include <thread>

#include "agent/testing/testing_agent.h"
#include "api/control.h"

namespace prorata::agent {
namespace {

using api::Event;
using api::EventKind;
using nlohmann::json;
using testing::Call;
using testing::kWelcome;
using testing::TestMember;

constexpr int kAuditWaitMs = 60'000;

class AuditTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(agent_.Start(), "ready"); }

  std::string MakeShare(const std::string& name, uint64_t memory_bytes) {
    return Call(folder_.path(),
                {{"op", "create_share"},
                 {"share", {{"name", name}, {"memory_bytes", memory_bytes}}}})["share"]["directory"]
        .get<std::string>();
  }
  json Device(const std::string& name) {
    const json reply = Call(folder_.path(), {{"op", "list_shares"}});
    for (const json& share : reply.value("shares", json::array())) {
      if (share["name"] == name) return share["devices"][0];
    }
    return json::object();
  }
  uint64_t Number(const std::string& name, const char* field) {
    return Device(name).value(field, ~uint64_t{0});
  }
  bool AwaitOverhead(uint64_t bytes) {
    return testing::Eventually([&] { return Number("a", "overhead_bytes") == bytes; },
                               kAuditWaitMs);
  }
  std::vector<Event> Reported(EventKind kind) {
    std::vector<Event> reported;
    const auto reply = api::EventsFromJson(Call(folder_.path(), {{"op", "events"}, {"since", 0}}));
    for (const Event& event : reply ? reply->events : std::vector<Event>{}) {
      if (event.kind == kind) reported.push_back(event);
    }
    return reported;
  }

  testing::TemporaryFolder folder_;
  testing::DevicePage* page_ = testing::DevicePage::Make();
  testing::AgentProcess agent_{folder_.path(), page_};
};

TEST_F(AuditTest, WhatNobodyAskedForIsChargedToTheShare) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(member.Charge(300 * kMiB));
  page_->Change(500 * kMiB);
  ASSERT_TRUE(AwaitOverhead(200 * kMiB));
  EXPECT_EQ(Number("a", "used_bytes"), 500 * kMiB);
  const auto& row = member.limits().members[member.slot()];
  EXPECT_EQ(row.overhead_bytes[0], 200 * kMiB);
  EXPECT_EQ(member.limits().devices[0].granted_bytes, member.grant() + 200 * kMiB);
  // What is left is exactly the rest, and it can all be had.
  EXPECT_FALSE(member.Charge(524 * kMiB + 1));
  EXPECT_TRUE(member.Charge(524 * kMiB));
  page_->Change(524 * kMiB);
  // An audit between these two lines saw a ledger above the device, and no overhead.
  ASSERT_TRUE(AwaitOverhead(200 * kMiB));
  EXPECT_FALSE(member.Charge(1));
  EXPECT_EQ(Number("a", "used_bytes"), kGiB);
  EXPECT_TRUE(Reported(EventKind::kBypassSuspected).empty()) << "it is within its limit";
}

TEST_F(AuditTest, OverheadThatIsGoneIsGivenBack) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(member.Charge(100 * kMiB));
  page_->Change(700 * kMiB);
  ASSERT_TRUE(AwaitOverhead(600 * kMiB));
  EXPECT_FALSE(member.Charge(500 * kMiB));
  page_->Change(-600 * kMiB);
  EXPECT_TRUE(testing::Eventually([&] { return member.Charge(500 * kMiB); }, kAuditWaitMs));
}

TEST_F(AuditTest, OverTheLimitByOverheadAloneIsReportedAtTheNextAllocation) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(member.Charge(kGiB - kMiB));
  page_->Change(kGiB + 20 * kMiB);
  ASSERT_TRUE(AwaitOverhead(21 * kMiB));
  EXPECT_EQ(Number("a", "used_bytes"), kGiB + 20 * kMiB);
  EXPECT_FALSE(member.Charge(1));
  EXPECT_GT(member.limits().devices[0].granted_bytes, kGiB) << "so that it must ask";
  EXPECT_TRUE(Reported(EventKind::kBypassSuspected).empty());
}

TEST_F(AuditTest, ABypassIsReportedOnceAnEpisode) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  page_->Change(3 * kGiB);
  ASSERT_TRUE(testing::Eventually([&] { return Device("a").value("bypass_suspected", false); },
                                  kAuditWaitMs));
  const auto reported = Reported(EventKind::kBypassSuspected);
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].share, "a");
  EXPECT_EQ(reported[0].pid, ::getpid());
  EXPECT_EQ(reported[0].used_bytes, 3 * kGiB);
  EXPECT_EQ(reported[0].limit_bytes, kGiB);
  page_->Change(-3 * static_cast<int64_t>(kGiB));
  ASSERT_TRUE(testing::Eventually([&] { return Reported(EventKind::kBypassOver).size() == 1; },
                                  kAuditWaitMs));
  EXPECT_FALSE(Device("a").value("bypass_suspected", true));
  EXPECT_EQ(Reported(EventKind::kBypassSuspected).size(), 1u);
  EXPECT_TRUE(member.Charge(kGiB)) << "all is its own again";
}

TEST_F(AuditTest, ALimitLoweredBelowUseIsNoBypass) {
  TestMember member(MakeShare("a", 4 * kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(member.Charge(3 * kGiB));
  page_->Change(3 * kGiB + 10 * static_cast<int64_t>(kMiB));
  Call(folder_.path(),
       {{"op", "update_share"}, {"name", "a"}, {"change", {{"memory_bytes", kGiB}}}});
  ASSERT_TRUE(AwaitOverhead(10 * kMiB));
  EXPECT_FALSE(Device("a").value("bypass_suspected", true));
  EXPECT_TRUE(Reported(EventKind::kBypassSuspected).empty());
}

TEST_F(AuditTest, TheNextAgentGoesOnWithWhatWasFound) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(member.Charge(300 * kMiB));
  page_->Change(500 * kMiB);
  ASSERT_TRUE(AwaitOverhead(200 * kMiB));
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  EXPECT_EQ(Number("a", "overhead_bytes"), 200 * kMiB);
  ASSERT_TRUE(member.Rejoin());
  EXPECT_FALSE(member.Charge(600 * kMiB));
  EXPECT_TRUE(member.Charge(524 * kMiB));
}

// What the new program has beyond its charges was taken for memory that the former one still had,
// so the share was never given that back.
TEST_F(AuditTest, AfterAnExecTheFormerProgramsGrantReturnsWhateverTheNewOneHas) {
  const std::string folder = MakeShare("a", kGiB);
  TestMember before(folder);
  ASSERT_EQ(before.Join(), kWelcome);
  ASSERT_TRUE(before.Charge(600 * kMiB));
  page_->Change(600 * kMiB);
  TestMember after(folder);  // as after exec: the same process, no memory of a slot
  ASSERT_EQ(after.Join(), kWelcome);
  ASSERT_TRUE(after.Charge(50 * kMiB));
  page_->Change(-350 * static_cast<int64_t>(kMiB));  // 200 MiB are overhead, and stay
  ASSERT_TRUE(AwaitOverhead(200 * kMiB));
  EXPECT_EQ(Number("a", "used_bytes"), 250 * kMiB);
  EXPECT_FALSE(after.Charge(774 * kMiB + 1));
  EXPECT_TRUE(after.Charge(774 * kMiB));
}

TEST_F(AuditTest, WhatStaysAfterAnExecIsChargedWhenTheFormerGrantReturnsAndNotLater) {
  const std::string folder = MakeShare("a", kGiB);
  TestMember before(folder);
  ASSERT_EQ(before.Join(), kWelcome);
  ASSERT_TRUE(before.Charge(600 * kMiB));
  page_->Change(600 * kMiB);  // and the driver never gives it back
  TestMember after(folder);
  ASSERT_EQ(after.Join(), kWelcome);
  uint64_t least = kGiB;
  ASSERT_TRUE(testing::Eventually(
      [&] {
        least = std::min<uint64_t>(least, after.limits().devices[0].granted_bytes);
        return Number("a", "overhead_bytes") == 600 * kMiB;
      },
      kAuditWaitMs));
  EXPECT_EQ(least, 600 * kMiB) << "less was taken for granted than the device shows";
  EXPECT_FALSE(after.Charge(424 * kMiB + 1));
  EXPECT_TRUE(after.Charge(424 * kMiB));
}

TEST_F(AuditTest, AFalseClaimHarmsNobodyAndIsReportedOnce) {
  const std::string folder = MakeShare("a", kGiB);
  TestMember liar(folder);
  ASSERT_EQ(liar.Join(), kWelcome);
  liar.usage().used_bytes = uint64_t{1} << 60;
  ASSERT_TRUE(testing::Eventually([&] { return Reported(EventKind::kFalseUsage).size() == 1; },
                                  kAuditWaitMs));
  EXPECT_EQ(Reported(EventKind::kFalseUsage)[0].used_bytes, uint64_t{1} << 60);
  EXPECT_EQ(Number("a", "used_bytes"), 0u);
  // Nor does it help to say too little: the device is believed.
  liar.usage().used_bytes = 0;
  page_->Change(400 * kMiB);
  ASSERT_TRUE(AwaitOverhead(400 * kMiB));
  EXPECT_EQ(Reported(EventKind::kFalseUsage).size(), 1u);
}

// Three looks in a row, a second apart, found it after 4.6 s or never.
TEST_F(AuditTest, AClaimThatComesAndGoesIsReportedAsOne) {
  const std::string folder = MakeShare("a", kGiB);
  TestMember liar(folder);
  ASSERT_EQ(liar.Join(), kWelcome);
  const auto begin = std::chrono::steady_clock::now();
  const auto since = [&] { return std::chrono::steady_clock::now() - begin; };
  std::chrono::steady_clock::duration reported{};
  for (int i = 0; since() < std::chrono::seconds(4); ++i) {
    liar.usage().used_bytes = i % 4 == 0 ? ~uint64_t{0} : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
    if (reported.count() == 0 && !Reported(EventKind::kFalseUsage).empty()) reported = since();
  }
  ASSERT_EQ(Reported(EventKind::kFalseUsage).size(), 1u);
  EXPECT_LE(reported, std::chrono::seconds(3));
}

TEST_F(AuditTest, WithoutFiguresPerProcessTheTotalIsUsedAndThatIsSaid) {
  page_->no_figures = true;
  page_->EntryOf(1)->bytes = 100 * kMiB;  // somebody else's, from before
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(testing::Eventually([&] { return Device("a").value("figures_missing", false); },
                                  kAuditWaitMs));
  ASSERT_EQ(Reported(EventKind::kFiguresMissing).size(), 1u);
  ASSERT_TRUE(member.Charge(300 * kMiB));
  page_->Change(500 * kMiB);
  ASSERT_TRUE(AwaitOverhead(200 * kMiB));
  EXPECT_EQ(Number("a", "used_bytes"), 500 * kMiB);
  EXPECT_EQ(member.limits().devices[0].overhead_bytes, 200 * kMiB);
  EXPECT_FALSE(member.Charge(525 * kMiB));
  page_->no_figures = false;
  ASSERT_TRUE(testing::Eventually([&] { return !Device("a").value("figures_missing", true); },
                                  kAuditWaitMs));
  ASSERT_TRUE(AwaitOverhead(200 * kMiB)) << "now by the process's own figure";
  EXPECT_EQ(member.limits().devices[0].overhead_bytes, 0u);
}

}  // namespace
}  // namespace prorata::agent
