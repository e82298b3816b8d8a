#include "agent/server/agent.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "agent/testing/testing_agent.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

using nlohmann::json;
using testing::AgentProcess;
using testing::Call;
using testing::DevicePage;
using testing::Eventually;
using testing::kRefused;
using testing::kWelcome;
using testing::TestMember;
using wire::MessageType;

class AgentTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(agent_.Start(), "ready"); }

  // A share whose owner is this process; its folder.
  std::string MakeShare(const std::string& name, uint64_t memory_bytes, double request = 0,
                        double limit = 1) {
    const json reply = Call(dir(), {{"op", "create_share"},
                                    {"share",
                                     {{"name", name},
                                      {"memory_bytes", memory_bytes},
                                      {"compute_request", request},
                                      {"compute_limit", limit}}}});
    EXPECT_TRUE(reply.contains("share")) << reply;
    return reply.contains("share") ? reply["share"]["directory"].get<std::string>() : "";
  }
  json Share(const std::string& name) {
    const json reply = Call(dir(), {{"op", "list_shares"}});
    for (const json& share : reply.value("shares", json::array())) {
      if (share["name"] == name) return share;
    }
    return {};
  }
  uint64_t Granted(const std::string& name) {
    const json share = Share(name);
    return share.is_null() ? ~uint64_t{0} : share["devices"][0]["granted_bytes"].get<uint64_t>();
  }
  std::string CodeOf(const json& reply) {
    return reply.contains("error") ? reply["error"]["code"].get<std::string>() : "";
  }
  const std::string& dir() const { return folder_.path(); }

  testing::TemporaryFolder folder_;
  DevicePage* page_ = DevicePage::Make();
  AgentProcess agent_{folder_.path(), page_};
};

TEST_F(AgentTest, TellsWhatItHas) {
  EXPECT_EQ(Call(dir(), {{"op", "hello"}})["pid"], agent_.pid());
  const json devices = Call(dir(), {{"op", "list_devices"}})["devices"];
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0]["uuid"], testing::kUuid);
  MakeShare("a/b", 3 * kGiB, 0.25);
  const json after = Call(dir(), {{"op", "list_devices"}})["devices"][0];
  EXPECT_EQ(after["promised_bytes"], 3 * kGiB);
  EXPECT_EQ(after["promised_request"], 0.25);
  const json kept_by = {{"kind", "process"}, {"pid", ::getpid()}};
  EXPECT_EQ(Share("a/b")["kept_by"], kept_by);
}

TEST_F(AgentTest, RefusesWhatCannotBeHadAndChangesNothing) {
  MakeShare("a", 3 * kGiB, 0.5);
  auto code = [this](json share) {
    return CodeOf(Call(dir(), {{"op", "create_share"}, {"share", std::move(share)}}));
  };
  EXPECT_EQ(code({{"name", "a"}}), "name_in_use");
  EXPECT_EQ(code({{"memory_bytes", 6 * kGiB}}), "memory_exceeded");
  EXPECT_EQ(code({{"memory_bytes", kGiB}, {"compute_request", 0.6}}), "request_exceeded");
  EXPECT_EQ(code({{"gpu", "3"}}), "unknown_gpu");
  EXPECT_EQ(code({{"name", "../x"}}), "bad_name");
  EXPECT_EQ(CodeOf(Call(dir(), {{"op", "remove_share"}, {"name", "b"}})), "no_share");
  EXPECT_EQ(Call(dir(), {{"op", "list_shares"}})["shares"].size(), 1u);
}

TEST_F(AgentTest, OneAgentToAFolder) {
  AgentProcess second(dir(), page_);
  EXPECT_EQ(second.Start(), "agent_running");
  EXPECT_TRUE(Call(dir(), {{"op", "hello"}}).contains("pid"));
}

TEST_F(AgentTest, AMemberGetsTheWholeShareAndNotOneByteMore) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  EXPECT_TRUE(member.Charge(kGiB - 1));
  EXPECT_TRUE(member.Charge(1));
  EXPECT_FALSE(member.Charge(1));
  EXPECT_EQ(Granted("a"), kGiB);
  member.Uncharge(kGiB);
  EXPECT_TRUE(member.Charge(kGiB));
}

TEST_F(AgentTest, TheHeartbeatBeats) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  const uint64_t before = member.limits().header.heartbeat;
  EXPECT_TRUE(Eventually([&] { return member.limits().header.heartbeat > before + 5; }));
}

TEST(DilatedAgentTest, SlowsItsOwnTimeAndTellsMembersSo) {
  testing::TemporaryFolder folder;
  AgentProcess agent(folder.path(), DevicePage::Make());
  constexpr uint32_t kDilation = 100;  // a beat is 2 s
  ASSERT_EQ(agent.Start(false, kDilation), "ready");
  const json made = Call(
      folder.path(), {{"op", "create_share"}, {"share", {{"name", "a"}, {"memory_bytes", kGiB}}}});
  ASSERT_TRUE(made.contains("share")) << made;
  TestMember member(made["share"]["directory"].get<std::string>());
  ASSERT_EQ(member.Join(), kWelcome);
  EXPECT_EQ(member.limits().header.dilation, kDilation);
  // Beats are counted inside the time that is taken: however late this looks, no more can be right
  // (a late one and the next may be close together).
  const int64_t begin_ns = RealClock().NowNs();
  const uint64_t before = member.limits().header.heartbeat;
  for (int64_t ns = 0; ns < 3 * kNsPerS; ns = RealClock().NowNs() - begin_ns) {
    const uint64_t beats = member.limits().header.heartbeat - before;
    const int64_t beaten_in_ns = RealClock().NowNs() - begin_ns;
    ASSERT_LE(beats, 2 + static_cast<uint64_t>(beaten_in_ns / (2 * kNsPerS)));
    ::usleep(2000);
  }
  EXPECT_TRUE(Eventually([&] { return member.limits().header.heartbeat > before; }));
}

// Runs `body` in a process of its own and answers with its number.
pid_t InChild(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  return pid;
}

int StatusOf(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(AgentTest, SlackIsRecalledFromANeighbourThatDoesNothing) {
  const std::string folder = MakeShare("a", 100 * kMiB);
  TestMember idle(folder);
  ASSERT_EQ(idle.Join(), kWelcome);
  ASSERT_TRUE(idle.Charge(60 * kMiB));
  idle.Uncharge(50 * kMiB);
  const int status = StatusOf(InChild([&] {
    TestMember other(folder);
    if (other.Join() != kWelcome) return 2;
    if (!other.Charge(90 * kMiB)) return 3;
    return other.Charge(1) ? 4 : 0;
  }));
  EXPECT_EQ(status, 0);
  EXPECT_EQ(idle.grant(), 10 * kMiB);
}

TEST_F(AgentTest, AProgramThatFollowsADeadOneGetsTheWholeShare) {
  const std::string folder = MakeShare("a", kGiB);
  for (int i = 0; i < 10; ++i) {
    const int status = StatusOf(InChild([&] {
      TestMember member(folder);
      if (member.Join() != kWelcome) return 2;
      if (!member.Charge(kGiB)) return 3;
      page_->Change(kGiB);
      return 0;
    }));
    ASSERT_EQ(status, 0) << "program " << i;
  }
  EXPECT_TRUE(Eventually([&] { return Granted("a") == 0; }));
}

// Allocates and frees at random until it is killed; what it holds is on the device page.
int ChurnForEver(const std::string& folder, DevicePage* page, uint32_t seed, uint64_t limit) {
  TestMember member(folder);
  if (member.Join() != kWelcome && !member.Rejoin()) return 2;
  std::mt19937 random(seed);
  std::vector<uint64_t> held;
  while (true) {
    const uint64_t bytes = 1 + random() % (limit / 8);
    if ((held.empty() || random() % 2 == 0) && member.Charge(bytes)) {
      page->Change(static_cast<int64_t>(bytes));
      held.push_back(bytes);
    } else if (!held.empty()) {
      page->Change(-static_cast<int64_t>(held.back()));
      member.Uncharge(held.back());
      held.pop_back();
    }
  }
}

TEST_F(AgentTest, NoChurnAndNoKillExceedsTheLimitByOneByte) {
  constexpr uint64_t kLimit = 256 * kMiB;
  const std::string folder = MakeShare("a", kLimit);
  std::mt19937 random(1);
  std::vector<pid_t> children;
  for (uint32_t i = 0; i < 60; ++i) {
    if (children.size() == 8) {
      const size_t victim = random() % children.size();
      ::kill(children[victim], SIGKILL);
      EXPECT_EQ(StatusOf(children[victim]), 128 + SIGKILL);
      children.erase(children.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    children.push_back(InChild([&] { return ChurnForEver(folder, page_, i, kLimit); }));
    ::usleep(random() % 20'000);
  }
  EXPECT_TRUE(Eventually([&] { return page_->most_bytes >= kLimit / 2; }))
      << "the share was never well used; the test is weak";
  for (const pid_t child : children) ::kill(child, SIGKILL);
  for (const pid_t child : children) EXPECT_EQ(StatusOf(child), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Granted("a") == 0; }));
  EXPECT_LE(page_->most_bytes, kLimit);
  TestMember fresh(folder);
  ASSERT_EQ(fresh.Join(), kWelcome);
  EXPECT_TRUE(fresh.Charge(kLimit));
}

TEST_F(AgentTest, AnAgentKilledUnderLoadLosesNothing) {
  constexpr uint64_t kLimit = 64 * kMiB;
  const std::string folder = MakeShare("a", kLimit);
  std::vector<pid_t> children;
  for (uint32_t i = 0; i < 4; ++i) {
    children.push_back(InChild([&] { return ChurnForEver(folder, page_, i, kLimit); }));
  }
  std::mt19937 random(2);
  uint64_t epoch = 1;
  for (int i = 0; i < 10; ++i) {
    ::usleep(20'000 + random() % 100'000);
    agent_.Kill();
    ASSERT_EQ(agent_.Start(), "ready");
    const json share = Share("a");
    ASSERT_FALSE(share.is_null());
    EXPECT_EQ(share["devices"][0]["memory_limit_bytes"], kLimit);
    ++epoch;
  }
  EXPECT_TRUE(Eventually([&] { return Share("a")["members"].size() == 4; }));
  for (const pid_t child : children) {
    EXPECT_EQ(::waitpid(child, nullptr, WNOHANG), 0) << "a program stopped";
    ::kill(child, SIGKILL);
    StatusOf(child);
  }
  EXPECT_LE(page_->most_bytes, kLimit);
  EXPECT_TRUE(Eventually([&] { return Granted("a") == 0; }));
  TestMember fresh(folder);
  ASSERT_EQ(fresh.Join(), kWelcome);
  EXPECT_EQ(fresh.limits().header.epoch, epoch);
  EXPECT_TRUE(fresh.Charge(kLimit));
}

TEST_F(AgentTest, AMemberThatJoinsAgainHasItsSlotAndGrant) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(member.Charge(100 * kMiB));
  const uint64_t slot = member.slot();
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  ASSERT_TRUE(member.Rejoin());
  EXPECT_EQ(member.slot(), slot);
  EXPECT_GE(member.grant(), 100 * kMiB);
  EXPECT_FALSE(member.Charge(kGiB));
  EXPECT_TRUE(member.Charge(kGiB - 100 * kMiB));
}

TEST_F(AgentTest, TheSameProcessJoiningAnewIsANewMember) {
  const std::string folder = MakeShare("a", kGiB);
  TestMember before(folder);
  ASSERT_EQ(before.Join(), kWelcome);
  ASSERT_TRUE(before.Charge(kGiB));
  TestMember after(folder);  // as after exec: the same process, no memory of a slot
  ASSERT_EQ(after.Join(), kWelcome);
  EXPECT_TRUE(after.Charge(kGiB));
  EXPECT_EQ(Share("a")["members"].size(), 1u);
}

TEST_F(AgentTest, ASharesEndIsItsOwnersAndItsLastMembers) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  std::string folder;
  const pid_t owner = InChild([&] {
    const std::string made = MakeShare("a", kGiB);
    if (::write(ready[1], made.data(), made.size()) < 0) return 1;
    ::pause();
    return 0;
  });
  char path[256];
  const ssize_t got = ::read(ready[0], path, sizeof path);
  ASSERT_GT(got, 0);
  folder.assign(path, static_cast<size_t>(got));
  const pid_t member = InChild([&] {
    TestMember own(folder);
    if (own.Join() != kWelcome) return 2;
    ::pause();
    return 0;
  });
  ASSERT_TRUE(Eventually([&] { return Share("a")["members"].size() == 1; }));
  ::kill(owner, SIGKILL);
  StatusOf(owner);
  // When the agent has dealt with an owner that died later, it has with this one.
  const pid_t later = InChild([&] { return MakeShare("b", kGiB).empty() ? 1 : 0; });
  ASSERT_EQ(StatusOf(later), 0);
  ASSERT_TRUE(Eventually([&] { return Share("b").is_null(); }));
  EXPECT_FALSE(Share("a").is_null());
  ::kill(member, SIGKILL);
  StatusOf(member);
  EXPECT_TRUE(Eventually([&] { return Share("a").is_null(); }));
  EXPECT_NE(::access(folder.c_str(), F_OK), 0);
}

TEST_F(AgentTest, ARemovedShareTakesNobodyInAndGoesWithItsLastMember) {
  const std::string folder = MakeShare("a", kGiB);
  const pid_t pid = InChild([&] {
    TestMember member(folder);
    if (member.Join() != kWelcome) return 2;
    ::pause();
    return 0;
  });
  ASSERT_TRUE(Eventually([&] { return Share("a")["members"].size() == 1; }));
  Call(dir(), {{"op", "remove_share"}, {"name", "a"}});
  EXPECT_TRUE(Share("a")["ended"].get<bool>());
  TestMember late(folder);
  EXPECT_EQ(late.Join(), kRefused);
  ::kill(pid, SIGKILL);
  StatusOf(pid);
  EXPECT_TRUE(Eventually([&] { return Share("a").is_null(); }));
}

// Says that a context was made for which `reserved` was charged; the agent's answer.
wire::ContextSettled SettleContext(TestMember& member, uint64_t reserved,
                                   uint32_t what = wire::kMadeContext) {
  const wire::ContextMade made{7, 0, what, reserved};
  testing::SendFrame(member.socket(), static_cast<uint16_t>(MessageType::kContextMade), &made,
                     sizeof made);
  const auto answer = member.Await(MessageType::kContextSettled);
  wire::ContextSettled settled = {};
  if (!answer) return settled;
  std::memcpy(&settled, answer->body.data(), sizeof settled);
  EXPECT_EQ(settled.id, 7u);
  return settled;
}

TEST_F(AgentTest, AContextIsSettledByWhatNvmlShows) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  const uint64_t reserved = member.limits().devices[0].context_overhead_bytes;
  ASSERT_TRUE(member.Charge(reserved));
  member.usage().overhead_bytes = reserved;
  page_->Change(static_cast<int64_t>(300 * kMiB));
  const wire::ContextSettled settled = SettleContext(member, reserved);
  EXPECT_EQ(settled.measured, 1u);
  EXPECT_EQ(settled.overhead_bytes, 300 * kMiB);
  EXPECT_GE(member.grant(), 300 * kMiB);
  EXPECT_EQ(member.limits().devices[0].context_overhead_bytes, 300 * kMiB);
}

// It reserved the guess again, and a context that fits the share's request was refused.
TEST_F(AgentTest, TheNextAgentKnowsWhatAContextTakes) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  const uint64_t guess = member.limits().devices[0].context_overhead_bytes;
  const auto restart = [&] {
    agent_.Kill();
    EXPECT_EQ(agent_.Start(), "ready");
    EXPECT_TRUE(member.Rejoin());
    return member.limits().devices[0].context_overhead_bytes.load();
  };
  EXPECT_EQ(restart(), guess);
  ASSERT_TRUE(member.Charge(guess));
  member.usage().overhead_bytes = guess;
  page_->Change(static_cast<int64_t>(40 * kMiB));
  ASSERT_EQ(SettleContext(member, guess).measured, 1u);
  EXPECT_EQ(restart(), 40 * kMiB);
}

// Threads that allocated at that moment made the overhead too small, and the share exceeded its
// limit by a context.
TEST_F(AgentTest, AContextBesideOtherMemoryKeepsItsReservation) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  const uint64_t reserved = member.limits().devices[0].context_overhead_bytes;
  ASSERT_TRUE(member.Charge(reserved));
  member.usage().overhead_bytes = reserved;
  ASSERT_TRUE(member.Charge(100 * kMiB));  // and the driver's allocation is still to come
  page_->Change(static_cast<int64_t>(reserved));
  EXPECT_EQ(SettleContext(member, reserved).measured, 0u);
  EXPECT_EQ(member.limits().devices[0].context_overhead_bytes, reserved);
}

TEST_F(AgentTest, WhatWasTakenImplicitlyIsMeasuredBesideOtherMemory) {
  TestMember member(MakeShare("a", kGiB));
  ASSERT_EQ(member.Join(), kWelcome);
  const uint64_t estimate = member.limits().devices[0].context_overhead_bytes;
  ASSERT_TRUE(member.Charge(102 * kMiB));  // the last 2 MiB for what is measured
  page_->Change(static_cast<int64_t>(106 * kMiB));
  wire::ContextSettled settled = SettleContext(member, 2 * kMiB, wire::kMadeOther);
  EXPECT_EQ(settled.measured, wire::kTook);
  EXPECT_EQ(settled.overhead_bytes, 6 * kMiB);
  EXPECT_GE(member.grant(), 106 * kMiB);
  page_->Change(static_cast<int64_t>(kGiB));
  settled = SettleContext(member, 2 * kMiB, wire::kMadeOther);
  EXPECT_EQ(settled.measured, wire::kTookTooMuch);
  EXPECT_EQ(member.limits().devices[0].context_overhead_bytes, estimate);
}

TEST_F(AgentTest, EndsAfterItsLastShare) {
  testing::TemporaryFolder other;
  AgentProcess idle(other.path(), page_);
  ASSERT_EQ(idle.Start(true), "ready");
  const pid_t owner = InChild([&] {
    Call(other.path(), {{"op", "create_share"}});
    return 0;
  });
  EXPECT_EQ(StatusOf(owner), 0);
  EXPECT_TRUE(idle.WaitForEnd());
  EXPECT_NE(::access((other.path() + "/control").c_str(), F_OK), 0);
}

}  // namespace
}  // namespace prorata::agent
