// Shares that run on all their devices at the same time, over real sockets.

#include <gtest/gtest.h>

#include "agent/testing/testing_agent.h"

namespace prorata::agent {
namespace {

using nlohmann::json;
using shm::kLeaseOpen;
using testing::AgentProcess;
using testing::Call;
using testing::DevicePage;
using testing::Eventually;
using testing::kWelcome;
using testing::StandIn;
using testing::TestMember;
using wire::MessageType;

// The agent's clock is slowed down: a program that is let in must have launched before its slice is
// over, and three stalls within a second make a gang; on a busy machine this test takes longer.
constexpr uint32_t kGangDilation = 20;
constexpr uint64_t kMuch = 10'000'000'000;  // not stalled while a test looks away
constexpr uint64_t kLittle = 1'000'000;     // soon stalled

class AgentGangsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    agent_.SetDevices(2);
    Start();
  }
  void Start() { ASSERT_EQ(agent_.Start(/*exit_when_idle=*/false, kGangDilation), "ready"); }
  // The folder of a new share.
  std::string Make(const std::string& name, json share) {
    share["name"] = name;
    share["memory_bytes"] = kGiB;
    share["compute_request"] = 0.3;  // without requests all shares hold their leases
    const json reply = Call(dir(), {{"op", "create_share"}, {"share", std::move(share)}});
    EXPECT_TRUE(reply.contains("share")) << reply;
    return reply["share"]["directory"].get<std::string>();
  }
  json Change(const std::string& name, const json& change) {
    return Call(dir(), {{"op", "update_share"}, {"name", name}, {"change", change}});
  }
  json Status(const std::string& name) {
    const json reply = Call(dir(), {{"op", "list_shares"}});
    for (const json& share : reply.value("shares", json::array())) {
      if (share["name"] == name) return share;
    }
    return json::object();
  }
  int CountEvents(const std::string& kind) {
    const json reply = Call(dir(), {{"op", "events"}, {"since", 0}});
    int count = 0;
    for (const json& event : reply["events"]) count += event["event"] == kind;
    return count;
  }
  const std::string& dir() const { return folder_.path(); }

  testing::TemporaryFolder folder_;
  AgentProcess agent_{folder_.path(), DevicePage::Make()};
};

// A program on one device as the agent sees it: it wants the lease, has much queued while it is
// open, and has drained when the test says so.
class Program {
 public:
  Program(TestMember& member, uint32_t device) : member_(member), device_(device) {}
  bool Open() const { return (word() & kLeaseOpen) != 0; }
  void Want() {
    ++usage().waiting;
    member_.Send(MessageType::kLeaseWanted, device_);
  }
  // It launches, once its lease is open.
  bool Run(uint64_t backlog_ns = kMuch) {
    if (!Eventually([this] { return Open(); })) return false;
    usage().backlog_ns = backlog_ns;
    usage().occupied_ns += 1'000'000'000;  // it leaves no gaps
    ++usage().launches;
    --usage().waiting;
    return true;
  }
  bool IsRevoked() {
    return Eventually([this] { return !Open(); });
  }
  void Drain() {
    usage().backlog_ns = 0;
    usage().drained_sequence = word() >> shm::kLeaseSequenceShift;
    member_.Send(MessageType::kLeaseDrained, device_);
  }
  uint32_t word() const { return member_.limits().devices[device_].lease.load(); }

 private:
  shm::DeviceUsage& usage() { return member_.usage(device_); }
  TestMember& member_;
  uint32_t device_;
};

TEST_F(AgentGangsTest, OneThatIsAskedForIsRevokedAndLetInOnAllItsDevices) {
  TestMember a(Make("a", {{"gpu", {"0", "1"}}, {"gang", "always"}}));
  ASSERT_EQ(a.Join(), kWelcome);
  EXPECT_EQ(Status("a")["gang"], "always");
  Program a0(a, 0), a1(a, 1);
  a0.Want();
  a1.Want();
  ASSERT_TRUE(a0.Run());
  ASSERT_TRUE(a1.Run());

  // Another wants the second device only: both are revoked.
  StandIn other;
  TestMember b(Make("b", {{"gpu", "1"}}), &other);
  ASSERT_EQ(b.Join(), kWelcome);
  Program b1(b, 0);
  b1.Want();
  ASSERT_TRUE(a1.IsRevoked());
  ASSERT_TRUE(a0.IsRevoked());
  a0.Want();
  a1.Want();
  // Drained on one device, and nothing goes on on the other: that is taken for a peer left behind,
  // and both are opened again for a moment. A member says again that it has drained.
  ASSERT_TRUE(Eventually([&] {
    for (Program* program : {&a0, &a1}) {
      if (!program->Open()) program->Drain();
    }
    return b1.Open();
  }));
  ASSERT_TRUE(b1.Run());
  EXPECT_FALSE(a1.Open());
  EXPECT_FALSE(a0.Open()) << "nobody wants the first device, but its kernels would wait there";

  ASSERT_TRUE(b1.IsRevoked());
  b1.Drain();
  EXPECT_TRUE(a0.Run());
  EXPECT_TRUE(a1.Run());
  EXPECT_TRUE(Status("a")["runs_as_gang"].get<bool>());
  EXPECT_EQ(CountEvents("gang_begun"), 0) << "what is asked for is no news";
}

// As a collective does it: its kernel on one device waits for the other, on which its launch waits
// for the lease. The device passes it over; again and again.
TEST_F(AgentGangsTest, OneThatIsSeenToStallBecomesOne) {
  TestMember a(Make("a", {{"gpu", {"0", "1"}}}));
  ASSERT_EQ(a.Join(), kWelcome);
  StandIn first, second;
  TestMember b(Make("b", {{"gpu", "0"}}), &first);
  TestMember c(Make("c", {{"gpu", "1"}}), &second);
  ASSERT_EQ(b.Join(), kWelcome);
  ASSERT_EQ(c.Join(), kWelcome);
  EXPECT_EQ(Status("a")["gang"], "auto");
  EXPECT_FALSE(Status("a")["runs_as_gang"].get<bool>());
  Program a0(a, 0), a1(a, 1), b0(b, 0), c1(c, 0);

  // From the moment that it is one nothing else is waited for.
  const auto gang = [&] { return CountEvents("gang_begun") > 0; };
  const auto opens = [&](Program& program, uint64_t backlog_ns = kMuch) {
    return Eventually([&] { return program.Open() || gang(); }) && !gang() &&
           program.Run(backlog_ns);
  };
  const auto is_revoked = [&](Program& program) {
    return Eventually([&] { return !program.Open() || gang(); }) && !gang();
  };
  c1.Want();
  a0.Want();
  const auto is_stalled = [&] {
    return Eventually([&] { return gang() || Status("a")["devices"][0]["stalled"].get<bool>(); });
  };
  const auto stall = [&] {
    if (!opens(c1) || !opens(a0, kLittle)) return;
    a1.Want();
    b0.Want();
    // What a has on the first device waits for its launch on the second, which waits for c1.
    if (!is_revoked(a0) || !opens(b0) || !is_revoked(c1)) return;
    if (!is_stalled()) return;
    c1.Drain();
    c1.Want();
    if (!opens(a1)) return;
    a0.Drain();
    a0.Want();
    if (!is_revoked(b0)) return;
    b0.Drain();
    if (!is_revoked(a1)) return;
    a1.Drain();
  };
  EXPECT_TRUE(Eventually([&] { return stall(), gang(); }));
  EXPECT_TRUE(Status("a")["runs_as_gang"].get<bool>());

  ASSERT_TRUE(Change("a", {{"gang", "never"}}).contains("share"));
  EXPECT_FALSE(Status("a")["runs_as_gang"].get<bool>());
  EXPECT_EQ(Status("a")["gang"], "never");
}

// On the device that nobody else wants, though the other one is another's.
TEST_F(AgentGangsTest, OneThatIsNoneAnyMoreRunsWhereItCan) {
  TestMember a(Make("a", {{"gpu", {"0", "1"}}, {"gang", "always"}}));
  ASSERT_EQ(a.Join(), kWelcome);
  StandIn other;
  TestMember b(Make("b", {{"gpu", "1"}}), &other);
  ASSERT_EQ(b.Join(), kWelcome);
  Program b1(b, 0), a0(a, 0);
  b1.Want();
  ASSERT_TRUE(b1.Run());
  EXPECT_FALSE(a0.Open()) << "its turn on one begins with its turn on all";
  ASSERT_TRUE(Change("a", {{"gang", "never"}}).contains("share"));
  a0.Want();
  EXPECT_TRUE(a0.Run());
  EXPECT_TRUE(b1.Open());
}

TEST_F(AgentGangsTest, TheNextAgentKnowsWhoIsOne) {
  TestMember a(Make("a", {{"gpu", {"0", "1"}}}));
  ASSERT_EQ(a.Join(), kWelcome);
  ASSERT_TRUE(Change("a", {{"gang", "always"}}).contains("share"));
  EXPECT_TRUE(Status("a")["runs_as_gang"].get<bool>());
  agent_.Kill();
  Start();
  EXPECT_EQ(Status("a")["gang"], "always");
  EXPECT_TRUE(Status("a")["runs_as_gang"].get<bool>());
  ASSERT_TRUE(a.Rejoin());
  Program a0(a, 0), a1(a, 1);
  a0.Want();
  a1.Want();
  EXPECT_TRUE(a0.Run());
  EXPECT_TRUE(a1.Run());
}

TEST_F(AgentGangsTest, ARefusedChangeChangesNothing) {
  Make("a", {{"gpu", "0"}});
  const json reply = Change("a", {{"gang", "always"}, {"weight", 7}});
  EXPECT_EQ(reply["error"]["code"], "gang_of_one") << reply;
  EXPECT_EQ(Status("a")["gang"], "auto");
  EXPECT_EQ(Status("a")["devices"][0]["weight"], 100);
  EXPECT_TRUE(Change("a", {{"gang", "never"}}).contains("share"));
  EXPECT_EQ(Status("a")["gang"], "never");
}

}  // namespace
}  // namespace prorata::agent
