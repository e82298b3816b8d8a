// What an agent tells over its control socket about shares, members and refusals.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cstring>

#include "agent/server/control_server.h"
#include "agent/testing/testing_agent.h"
#include "api/control.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

using api::Event;
using api::EventKind;
using nlohmann::json;
using testing::Call;
using testing::ConnectTo;
using testing::ReceiveFrame;
using testing::SendFrame;
using testing::TestMember;

constexpr auto kControl = static_cast<uint16_t>(wire::MessageType::kControlJson);
constexpr int kWaitMs = 60'000;

class AgentEventsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(agent_.Start(), "ready");
    const auto reply = Call(folder_.path(), {{"op", "create_share"},
                                             {"share", {{"name", "a"}, {"memory_bytes", kGiB}}}});
    share_ = reply["share"]["directory"].get<std::string>();
  }

  std::vector<Event> Kept(EventKind kind) {
    std::vector<Event> found;
    const auto reply = api::EventsFromJson(Call(folder_.path(), {{"op", "events"}, {"since", 0}}));
    if (!reply) return found;
    for (const Event& event : reply->events) {
      if (event.kind == kind) found.push_back(event);
    }
    return found;
  }
  // The first event of a kind, waited for.
  Event Await(EventKind kind) {
    EXPECT_TRUE(testing::Eventually([&] { return !Kept(kind).empty(); }, kWaitMs))
        << api::NameOf(kind);
    const auto found = Kept(kind);
    return found.empty() ? Event{} : found.front();
  }
  json Device() {
    return Call(folder_.path(), {{"op", "list_shares"}}).at("shares").at(0).at("devices").at(0);
  }

  testing::TemporaryFolder folder_;
  testing::DevicePage* page_ = testing::DevicePage::Make();
  testing::AgentProcess agent_{folder_.path(), page_};
  std::string share_;
};

TEST_F(AgentEventsTest, TheLifeOfAShare) {
  EXPECT_EQ(Kept(EventKind::kAgentStarted).size(), 1u);
  const Event made = Await(EventKind::kShareCreated);
  EXPECT_EQ(made.share, "a");
  EXPECT_EQ(made.limit_bytes, kGiB);
  EXPECT_EQ(made.uuid, testing::kUuid);
  Call(folder_.path(),
       {{"op", "update_share"}, {"name", "a"}, {"change", {{"memory_bytes", 2 * kGiB}}}});
  const Event changed = Await(EventKind::kShareChanged);
  EXPECT_EQ(changed.detail, "memory 1 GiB to 2 GiB");
  EXPECT_EQ(changed.limit_bytes, 2 * kGiB);
  Call(folder_.path(), {{"op", "remove_share"}, {"name", "a"}});
  EXPECT_EQ(Await(EventKind::kShareEnded).share, "a");
}

TEST_F(AgentEventsTest, AMemberComesAndGoes) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    TestMember member(share_);
    ::_exit(member.Join() == static_cast<uint16_t>(wire::MessageType::kWelcome) ? 0 : 1);
  }
  int status = 1;
  ::waitpid(pid, &status, 0);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(Await(EventKind::kMemberGone).pid, pid);
  const Event joined = Await(EventKind::kMemberJoined);
  EXPECT_EQ(joined.pid, pid);
  EXPECT_EQ(joined.share, "a");
  EXPECT_EQ(joined.command, "agent_test");
}

TEST_F(AgentEventsTest, RefusalsAreReportedWithTheirCount) {
  TestMember member(share_);
  ASSERT_EQ(member.Join(), static_cast<uint16_t>(wire::MessageType::kWelcome));
  member.usage().refused_bytes = 3 * kGiB;
  member.usage().refusals = 2;
  const Event refused = Await(EventKind::kRefusal);
  EXPECT_EQ(refused.count, 2u);
  EXPECT_EQ(refused.asked_bytes, 3 * kGiB);
  EXPECT_EQ(refused.limit_bytes, kGiB);
  EXPECT_EQ(refused.pid, ::getpid());
  EXPECT_EQ(refused.why, "own_limit");
  member.usage().ungoverned_functions = 4;
  EXPECT_EQ(Await(EventKind::kUngovernedFunctions).count, 4u);
  // The next agent does not tell it again.
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  ASSERT_TRUE(member.Rejoin());
  member.usage().refusals += 5;
  EXPECT_EQ(Await(EventKind::kRefusal).count, 5u);
  EXPECT_EQ(Kept(EventKind::kUngovernedFunctions).size(), 0u);
  EXPECT_EQ(Await(EventKind::kShareAdopted).share, "a");
}

TEST_F(AgentEventsTest, WhatADeadMemberCountedLastIsReported) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    TestMember member(share_);
    member.Join();
    member.usage().refusals = 7;
    ::_exit(0);
  }
  ::waitpid(pid, nullptr, 0);
  EXPECT_EQ(Await(EventKind::kMemberGone).pid, pid);
  uint64_t count = 0;
  for (const Event& event : Kept(EventKind::kRefusal)) count += event.count;
  EXPECT_EQ(count, 7u);
}

TEST_F(AgentEventsTest, APersistentKernelIsReportedOnceAndWhenItIsOver) {
  TestMember member(share_);
  ASSERT_EQ(member.Join(), static_cast<uint16_t>(wire::MessageType::kWelcome));
  member.usage().persistent_ns = 12'345'000'000;
  const Event reported = Await(EventKind::kPersistentKernel);
  EXPECT_EQ(reported.running_ms, 12'345);
  EXPECT_EQ(reported.uuid, testing::kUuid);
  EXPECT_EQ(reported.pid, ::getpid());
  EXPECT_EQ(Device().at("persistent_kernels"), 1);
  EXPECT_EQ(Device().at("throttle_reasons").at(0), "non_preemptible");
  member.usage().persistent_ns = 20'000'000'000;
  // The next agent starts its list anew: the events of the one before are gone with it.
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  ASSERT_TRUE(member.Rejoin());
  EXPECT_EQ(Await(EventKind::kPersistentKernel).running_ms, 20'000);
  member.usage().persistent_ns = 0;
  EXPECT_EQ(Await(EventKind::kPersistentKernelOver).running_ms, 20'000);
  EXPECT_EQ(Kept(EventKind::kPersistentKernel).size(), 1u);
  EXPECT_EQ(Device().at("persistent_kernels"), 0);
}

TEST_F(AgentEventsTest, APersistentKernelIsOverWithItsProcess) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    TestMember member(share_);
    member.Join();
    member.usage().persistent_ns = 12'000'000'000;
    ::pause();
  }
  EXPECT_EQ(Await(EventKind::kPersistentKernel).pid, pid);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  EXPECT_EQ(Await(EventKind::kPersistentKernelOver).pid, pid);
  EXPECT_EQ(Await(EventKind::kMemberGone).pid, pid);
}

TEST_F(AgentEventsTest, AWrongMessageIsReportedOnce) {
  const int64_t begin_ns = RealClock().NowNs();
  for (int i = 0; i < 20; ++i) {
    const UniqueFd socket = ConnectTo(share_ + "/socket");
    const wire::GrantRequest request{1, 0, 0, 5};
    SendFrame(socket.get(), static_cast<uint16_t>(wire::MessageType::kGrantRequest), &request,
              sizeof request);
    ASSERT_TRUE(ReceiveFrame(socket.get(), kWaitMs).has_value());
  }
  const auto refused = Kept(EventKind::kMemberRefused);
  ASSERT_GE(refused.size(), 1u);
  EXPECT_EQ(refused[0].why, "malformed");
  EXPECT_EQ(refused[0].pid, ::getpid());
  // At once, and then what came in each window together: one of a second when this is quick.
  uint64_t sum = 0;
  for (const Event& event : refused) sum += event.count;
  const int64_t windows = (RealClock().NowNs() - begin_ns) / Events::kWindowNs;
  EXPECT_LE(refused.size(), 2 + static_cast<size_t>(windows));
  EXPECT_LE(sum, 20u);
}

TEST_F(AgentEventsTest, AFollowerGetsThemAsTheyCome) {
  const UniqueFd socket = ConnectTo(folder_.path() + "/control");
  Call(folder_.path(),
       {{"op", "create_share"}, {"share", {{"name", "b"}, {"memory_bytes", api::kMinShareBytes}}}});
  const std::string request = R"({"op": "events", "follow": true, "since": 0, "share": "b"})";
  SendFrame(socket.get(), kControl, request.data(), request.size());
  auto first = ReceiveFrame(socket.get(), kWaitMs);
  ASSERT_TRUE(first.has_value());
  auto reply = api::EventsFromJson(json::parse(first->body));
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->events.size(), 1u) << "it was made";
  Call(folder_.path(),
       {{"op", "create_share"}, {"share", {{"name", "c"}, {"memory_bytes", api::kMinShareBytes}}}});
  Call(folder_.path(), {{"op", "update_share"}, {"name", "b"}, {"change", {{"weight", 7}}}});
  auto next = ReceiveFrame(socket.get(), kWaitMs);
  ASSERT_TRUE(next.has_value());
  reply = api::EventsFromJson(json::parse(next->body));
  ASSERT_TRUE(reply.has_value());
  ASSERT_EQ(reply->events.size(), 1u);
  EXPECT_EQ(reply->events[0].share, "b");
  // It answers nothing else, and says so.
  SendFrame(socket.get(), kControl, request.data(), request.size());
  auto refused = ReceiveFrame(socket.get(), kWaitMs);
  ASSERT_TRUE(refused.has_value());
  EXPECT_NE(refused->body.find("malformed"), std::string::npos);
}

// The server in this process, so that events cost nothing but themselves.
TEST(ControlServerEvents, AFollowerThatDoesNotReadLosesEventsAndIsReportedSo) {
  testing::TemporaryFolder folder;
  testing::PageNvml nvml(testing::DevicePage::Make());
  boost::asio::io_context loop{1};
  Node node(loop, folder.path(), nvml);
  ControlServer server(loop, node, "0", [] {});
  const std::string path = folder.path() + "/control";
  ASSERT_TRUE(server.Start(path).has_value());
  const UniqueFd lazy = ConnectTo(path);
  const std::string request = R"({"op": "events", "follow": true})";
  SendFrame(lazy.get(), kControl, request.data(), request.size());
  uint64_t got = 0;
  uint64_t lost = 0;
  uint64_t next = 0;
  // What has come so far, with the beginning of the next frame kept: the server, in this thread,
  // sends its end only when it is polled.
  std::string bytes;
  auto receive = [&] {
    char chunk[65'536];
    for (ssize_t n; (n = ::recv(lazy.get(), chunk, sizeof chunk, MSG_DONTWAIT)) > 0;) {
      bytes.append(chunk, static_cast<size_t>(n));
    }
    wire::FrameHeader header;
    if (bytes.size() < sizeof header) return false;
    std::memcpy(&header, bytes.data(), sizeof header);
    if (bytes.size() < sizeof header + header.body_bytes) return false;
    const auto reply =
        api::EventsFromJson(json::parse(bytes.substr(sizeof header, header.body_bytes)));
    bytes.erase(0, sizeof header + header.body_bytes);
    if (!reply) return false;
    got += reply->events.size();
    lost += reply->lost;
    next = reply->next;
    return true;
  };
  ASSERT_TRUE(testing::Eventually(
      [&] {
        loop.poll();
        return receive();
      },
      kWaitMs));
  const uint64_t added = 10'000;
  for (uint64_t i = 0; i < added; ++i) {
    node.events().Add({.kind = EventKind::kShareChanged, .detail = std::string(100, 'x')});
    loop.poll();  // each is sent, as far as somebody takes it
  }
  const uint64_t last = node.events().last_sequence();
  EXPECT_TRUE(testing::Eventually(
      [&] {
        loop.poll();
        while (receive()) {
        }
        return next >= last;
      },
      kWaitMs));
  EXPECT_EQ(got + lost, added);
  EXPECT_GT(lost, 0u);
  EXPECT_GE(got, Events::kKept);
}

}  // namespace
}  // namespace prorata::agent
