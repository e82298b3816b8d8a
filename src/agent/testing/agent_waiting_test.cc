// Shares that were promised more than the device has: what the agent answers to their members.

#include <unistd.h>

#include <cstring>
#include <list>

#include "agent/testing/testing_agent.h"

namespace prorata::agent {
namespace {

using nlohmann::json;
using testing::AgentProcess;
using testing::Call;
using testing::DevicePage;
using testing::Eventually;
using testing::kPatienceMs;
using testing::kWelcome;
using testing::TestMember;
using wire::GrantReply;
using wire::GrantResult;
using wire::MessageType;

// The device has 8 GiB.
class AgentWaitingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    agent_.overcommit = {{"", 2}};
    ASSERT_EQ(agent_.Start(), "ready");
  }

  std::unique_ptr<TestMember> Member(const std::string& name, uint64_t memory_bytes,
                                     const std::string& on_full, bool guaranteed = false) {
    const json reply = Call(folder_.path(), {{"op", "create_share"},
                                             {"share",
                                              {{"name", name},
                                               {"memory_bytes", memory_bytes},
                                               {"on_full", on_full},
                                               {"guaranteed", guaranteed}}}});
    EXPECT_TRUE(reply.contains("share")) << reply;
    auto member = std::make_unique<TestMember>(reply["share"]["directory"].get<std::string>(),
                                               &processes_.emplace_back());
    EXPECT_EQ(member->Join(), kWelcome);
    return member;
  }

  void Ask(TestMember& member, uint64_t id, uint64_t needed_bytes, uint32_t wait_ms) {
    const wire::GrantRequest request{id, 0, wait_ms, needed_bytes};
    testing::SendFrame(member.socket(), static_cast<uint16_t>(MessageType::kGrantRequest), &request,
                       sizeof request);
  }
  // The next answer: its request and result.
  std::pair<uint64_t, GrantResult> Hear(TestMember& member) {
    const auto frame = member.Await(MessageType::kGrantReply, kPatienceMs);
    GrantReply reply{};
    EXPECT_TRUE(frame.has_value());
    if (frame) std::memcpy(&reply, frame->body.data(), sizeof reply);
    return {reply.id, reply.result};
  }
  GrantResult Take(TestMember& member, uint64_t bytes, uint32_t wait_ms = wire::kNoWait) {
    Ask(member, 1, bytes, wait_ms);
    const auto [id, result] = Hear(member);
    if (result == GrantResult::kGranted) member.usage().used_bytes = bytes;
    return result;
  }
  uint64_t Waiting(const std::string& name) {
    const json reply = Call(folder_.path(), {{"op", "list_shares"}});
    for (const json& share : reply.value("shares", json::array())) {
      if (share["name"] == name) return share["devices"][0]["memory_waits"].get<uint64_t>();
    }
    return 0;
  }
  json Update(const std::string& name, const json& change) {
    return Call(folder_.path(), {{"op", "update_share"}, {"name", name}, {"change", change}});
  }

  testing::TemporaryFolder folder_;
  DevicePage* page_ = DevicePage::Make();
  AgentProcess agent_{folder_.path(), page_};
  std::list<testing::StandIn> processes_;  // each member is one's
};

using Answered = std::pair<uint64_t, GrantResult>;

TEST_F(AgentWaitingTest, AFullDeviceIsReportedApartFromAFullShare) {
  const auto a = Member("a", 6 * kGiB, "fail");
  const auto b = Member("b", 6 * kGiB, "fail");
  EXPECT_EQ(Take(*a, 6 * kGiB), GrantResult::kGranted);
  EXPECT_EQ(Take(*b, 3 * kGiB), GrantResult::kDeviceFull);
  EXPECT_EQ(Take(*b, 3 * kGiB, wire::kWaitForever), GrantResult::kDeviceFull)
      << "the share does not wait, whatever its member says";
  EXPECT_EQ(Take(*b, 6 * kGiB + 1), GrantResult::kShareFull);
  EXPECT_EQ(Take(*b, 2 * kGiB), GrantResult::kGranted);
  EXPECT_LE(a->grant() + b->grant(), 8 * kGiB);
  // What is not used is taken back from its holder for somebody else.
  a->usage().used_bytes = kGiB;
  EXPECT_EQ(Take(*b, 6 * kGiB), GrantResult::kGranted);
  EXPECT_LE(a->grant() + b->grant(), 8 * kGiB);
}

TEST_F(AgentWaitingTest, WaitersAreServedInOrderAndOthersAreAnsweredMeanwhile) {
  const auto holder = Member("holder", 6 * kGiB, "fail");
  const auto a = Member("a", 5 * kGiB, "wait");
  const auto b = Member("b", 5 * kGiB, "wait");
  EXPECT_EQ(Take(*holder, 6 * kGiB), GrantResult::kGranted);
  Ask(*a, 7, 5 * kGiB, wire::kWaitForever);
  EXPECT_TRUE(Eventually([&] { return Waiting("a") == 1; }, kPatienceMs));
  Ask(*b, 8, 5 * kGiB, wire::kWaitForever);
  EXPECT_TRUE(Eventually([&] { return Waiting("b") == 1; }, kPatienceMs));
  // Another thread of `a`, whose call may not wait, and one that asks too much.
  Ask(*a, 9, 4 * kGiB, wire::kNoWait);
  EXPECT_EQ(Hear(*a), (Answered{9, GrantResult::kDeviceFull}));
  Ask(*a, 10, 5 * kGiB + 1, wire::kWaitForever);
  EXPECT_EQ(Hear(*a), (Answered{10, GrantResult::kShareFull}));
  // What a member was granted and does not use is taken back for who waits, at the next look: `a`
  // uses its grant as soon as it has it, however late this process runs.
  a->usage().used_bytes = 5 * kGiB;
  holder->usage().used_bytes = 0;
  EXPECT_EQ(Hear(*a), (Answered{7, GrantResult::kGranted}));
  EXPECT_EQ(Waiting("b"), 1u);
  a->Disconnect();
  EXPECT_EQ(Waiting("b"), 1u) << "a process without a connection holds what it has";
}

// A member that has not joined again counts with all of its grant, and may have freed that while
// there was no agent: others were refused what was there.
TEST_F(AgentWaitingTest, NobodyIsRefusedForWhatAMemberMayHaveFreedWithoutAnAgent) {
  const auto a = Member("a", 6 * kGiB, "fail");
  const auto b = Member("b", 6 * kGiB, "fail");
  TestMember sibling(folder_.path() + "/shares/a", &processes_.emplace_back());
  ASSERT_EQ(sibling.Join(), kWelcome);
  ASSERT_EQ(Take(*a, 6 * kGiB), GrantResult::kGranted);
  agent_.Kill();
  a->usage().used_bytes = 0;
  ASSERT_EQ(agent_.Start(), "ready");
  ASSERT_TRUE(b->Rejoin());
  ASSERT_TRUE(sibling.Rejoin());
  Ask(*b, 1, 3 * kGiB, wire::kNoWait);       // of what the device has
  Ask(sibling, 2, 4 * kGiB, wire::kNoWait);  // of what the share has
  EXPECT_FALSE(b->Await(MessageType::kGrantReply, 50).has_value());
  EXPECT_FALSE(sibling.Await(MessageType::kGrantReply, 50).has_value());
  ASSERT_TRUE(a->Rejoin());
  EXPECT_EQ(Hear(*b), (Answered{1, GrantResult::kGranted}));
  b->usage().used_bytes = 3 * kGiB;
  EXPECT_EQ(Hear(sibling), (Answered{2, GrantResult::kGranted}));
}

TEST_F(AgentWaitingTest, AMemberThatDoesNotComeBackDelaysNobodyForLong) {
  const auto a = Member("a", 6 * kGiB, "fail");
  const auto b = Member("b", 6 * kGiB, "fail");
  ASSERT_EQ(Take(*a, 6 * kGiB), GrantResult::kGranted);
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  ASSERT_TRUE(b->Rejoin());
  EXPECT_EQ(Take(*b, 3 * kGiB), GrantResult::kDeviceFull);
  const int64_t before_ns = RealClock().NowNs();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Take(*b, 3 * kGiB), GrantResult::kDeviceFull);
  EXPECT_LT(RealClock().NowNs() - before_ns, 10 * kNsPerS) << "each waits anew";
}

// On a busy machine it took longer than a look of the agent's to use what it had waited for, and
// the next in line got it.
TEST_F(AgentWaitingTest, WhoWaitedHasTimeToUseWhatItWasGranted) {
  const auto holder = Member("holder", 6 * kGiB, "fail");
  const auto a = Member("a", 5 * kGiB, "wait");
  const auto b = Member("b", 5 * kGiB, "wait");
  ASSERT_EQ(Take(*holder, 6 * kGiB), GrantResult::kGranted);
  Ask(*a, 7, 5 * kGiB, wire::kWaitForever);
  ASSERT_TRUE(Eventually([&] { return Waiting("a") == 1; }, kPatienceMs));
  Ask(*b, 8, 5 * kGiB, wire::kWaitForever);
  ASSERT_TRUE(Eventually([&] { return Waiting("b") == 1; }, kPatienceMs));
  holder->usage().used_bytes = 0;
  EXPECT_EQ(Hear(*a), (Answered{7, GrantResult::kGranted}));
  EXPECT_FALSE(b->Await(MessageType::kGrantReply, 200).has_value());
  EXPECT_GE(a->grant(), 5 * kGiB);
  a->usage().used_bytes = 5 * kGiB;
  a->usage().used_bytes = 0;
  // Not for ever, whether it used it or not.
  EXPECT_EQ(Hear(*b), (Answered{8, GrantResult::kGranted}));
}

TEST_F(AgentWaitingTest, AWaitEndsInTimeAndWithItsConnection) {
  const auto holder = Member("holder", 6 * kGiB, "fail");
  const auto a = Member("a", 5 * kGiB, "wait");
  EXPECT_EQ(Take(*holder, 6 * kGiB), GrantResult::kGranted);
  EXPECT_EQ(Take(*a, 4 * kGiB, 50), GrantResult::kDeviceFull);
  Ask(*a, 3, 4 * kGiB, wire::kWaitForever);
  EXPECT_TRUE(Eventually([&] { return Waiting("a") == 1; }, kPatienceMs));
  a->Disconnect();
  EXPECT_TRUE(Eventually([&] { return Waiting("a") == 0; }, kPatienceMs));
}

TEST_F(AgentWaitingTest, TermsThatChangeEndOrServeAWait) {
  const auto holder = Member("holder", 6 * kGiB, "fail");
  const auto a = Member("a", 5 * kGiB, "wait");
  EXPECT_EQ(Take(*holder, 6 * kGiB), GrantResult::kGranted);
  Ask(*a, 3, 4 * kGiB, wire::kWaitForever);
  EXPECT_TRUE(Eventually([&] { return Waiting("a") == 1; }, kPatienceMs));
  EXPECT_TRUE(Update("a", {{"memory_bytes", 3 * kGiB}}).contains("share"));
  EXPECT_EQ(Hear(*a), (Answered{3, GrantResult::kShareFull}));
  Ask(*a, 4, 3 * kGiB, wire::kWaitForever);
  EXPECT_TRUE(Eventually([&] { return Waiting("a") == 1; }, kPatienceMs));
  EXPECT_TRUE(Update("a", {{"on_full", "fail"}}).contains("share"));
  EXPECT_EQ(Hear(*a), (Answered{4, GrantResult::kDeviceFull}));
}

TEST_F(AgentWaitingTest, AnAgentThatTakesOverKeepsRatiosTermsAndReferences) {
  const auto holder = Member("holder", 6 * kGiB, "fail");
  const auto a = Member("a", 6 * kGiB, "wait=5m");
  EXPECT_EQ(Take(*holder, 6 * kGiB), GrantResult::kGranted);
  agent_.Kill();
  agent_.overcommit = {};
  ASSERT_EQ(agent_.Start(), "ready");
  EXPECT_EQ(Call(folder_.path(), {{"op", "list_devices"}})["devices"][0]["overcommit"], 2);
  ASSERT_TRUE(holder->Rejoin() && a->Rejoin());
  EXPECT_EQ(a->limits().header.on_full_wait_ms, 300'000u);
  Ask(*a, 5, 4 * kGiB, wire::kWaitForever);
  EXPECT_TRUE(Eventually([&] { return Waiting("a") == 1; }, kPatienceMs));
  holder->usage().used_bytes = kGiB;
  EXPECT_EQ(Hear(*a), (Answered{5, GrantResult::kGranted}));
}

TEST_F(AgentWaitingTest, WhatIsSetAsideIsThereWheneverItIsWanted) {
  const auto sure = Member("sure", 3 * kGiB, "fail", true);
  const auto other = Member("other", 5 * kGiB, "fail");
  EXPECT_EQ(Take(*other, 5 * kGiB), GrantResult::kGranted);
  EXPECT_EQ(Take(*sure, 3 * kGiB), GrantResult::kGranted);
  const json more =
      Call(folder_.path(),
           {{"op", "create_share"}, {"share", {{"memory_bytes", kGiB}, {"guaranteed", true}}}});
  EXPECT_EQ(more["error"]["code"], "memory_exceeded") << more;
}

// Not overcommitted: what shares borrow is what they said.
class AgentMemoryRequestTest : public AgentWaitingTest {
 protected:
  void SetUp() override { ASSERT_EQ(agent_.Start(), "ready"); }

  // A request of 2 GiB and a limit of 6.
  std::unique_ptr<TestMember> TwoToSix(const std::string& name, const std::string& on_full) {
    const json reply = Call(folder_.path(), {{"op", "create_share"},
                                             {"share",
                                              {{"name", name},
                                               {"memory_part", 0.75},
                                               {"memory_request_bytes", 2 * kGiB},
                                               {"on_full", on_full}}}});
    EXPECT_TRUE(reply.contains("share")) << reply;
    EXPECT_EQ(reply["share"]["devices"][0]["memory_limit_bytes"], 6 * kGiB);
    auto member = std::make_unique<TestMember>(reply["share"]["directory"].get<std::string>(),
                                               &processes_.emplace_back());
    EXPECT_EQ(member->Join(), kWelcome);
    return member;
  }
  json Device() { return Call(folder_.path(), {{"op", "list_devices"}})["devices"][0]; }
};

TEST_F(AgentMemoryRequestTest, WithinARequestAtOnceAndBeyondItWhileItIsThere) {
  const auto a = TwoToSix("a", "fail");
  const auto b = TwoToSix("b", "wait");
  EXPECT_EQ(Take(*a, 6 * kGiB), GrantResult::kGranted);
  EXPECT_EQ(Device()["promised_bytes"], 4 * kGiB);
  EXPECT_EQ(Device()["limit_bytes"], 12 * kGiB);
  EXPECT_EQ(Device()["borrowed_bytes"], 4 * kGiB);
  Ask(*b, 7, 3 * kGiB, wire::kWaitForever);
  EXPECT_TRUE(Eventually([&] { return Waiting("b") == 1; }, kPatienceMs));
  EXPECT_EQ(Take(*b, 2 * kGiB), GrantResult::kGranted) << "another call of it waits";
  EXPECT_LE(a->grant() + b->grant(), 8 * kGiB);
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  ASSERT_TRUE(a->Rejoin() && b->Rejoin());
  EXPECT_EQ(Device()["borrowed_bytes"], 4 * kGiB);
  Ask(*b, 8, 3 * kGiB, wire::kWaitForever);
  EXPECT_TRUE(Eventually([&] { return Waiting("b") == 1; }, kPatienceMs));
  a->usage().used_bytes = kGiB;
  EXPECT_EQ(Hear(*b), (Answered{8, GrantResult::kGranted}));
  b->usage().used_bytes = 3 * kGiB;
  EXPECT_EQ(Take(*b, 6 * kGiB), GrantResult::kGranted);
  EXPECT_EQ(Take(*a, 2 * kGiB), GrantResult::kGranted);
  EXPECT_EQ(Take(*a, 2 * kGiB + 1), GrantResult::kDeviceFull);
}

TEST_F(AgentMemoryRequestTest, ARequestThatOthersBorrowedIsNotToBeHadUntilTheyGiveItBack) {
  const auto a = TwoToSix("a", "fail");
  EXPECT_EQ(Take(*a, 6 * kGiB), GrantResult::kGranted);
  const json three = {{"name", "c"}, {"memory_bytes", 3 * kGiB}};
  json reply = Call(folder_.path(), {{"op", "create_share"}, {"share", three}});
  EXPECT_EQ(reply["error"]["code"], "memory_exceeded") << reply;
  EXPECT_EQ(Update("a", {{"memory_request_bytes", 6 * kGiB}})["share"]["guaranteed"], true);
  EXPECT_EQ(Device()["borrowed_bytes"], 0);
  EXPECT_TRUE(Update("a", {{"memory_request_bytes", kGiB}}).contains("share"));
  EXPECT_EQ(Device()["borrowed_bytes"], 5 * kGiB) << "what it took of its request, too";
  // What is granted and not used is taken back for the new share.
  a->usage().used_bytes = 5 * kGiB;
  reply = Call(folder_.path(), {{"op", "create_share"}, {"share", three}});
  EXPECT_TRUE(reply.contains("share")) << reply;
  EXPECT_EQ(Take(*a, 5 * kGiB + 1), GrantResult::kDeviceFull);
}

}  // namespace
}  // namespace prorata::agent
