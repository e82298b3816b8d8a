// What may hang does not stop the agent: NVML, the disk. A loop that is stuck has no heartbeat.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "agent/testing/testing_agent.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

using shm::kLeaseOpen;
using testing::Call;
using testing::Eventually;
using testing::kWelcome;
using testing::TestMember;
using wire::MessageType;

constexpr int kStuckMs = 1000;

class LivenessTest : public ::testing::Test {
 protected:
  std::string MakeShare(const std::string& name, double limit = 1) {
    const nlohmann::json reply =
        Call(folder_.path(),
             {{"op", "create_share"},
              {"share", {{"name", name}, {"memory_bytes", kGiB}, {"compute_limit", limit}}}});
    return reply.value("share", nlohmann::json::object()).value("directory", "");
  }
  nlohmann::json Device() { return Call(folder_.path(), {{"op", "list_devices"}})["devices"][0]; }
  std::vector<std::string> EventNames() {
    std::vector<std::string> names;
    const auto reply = Call(folder_.path(), {{"op", "events"}, {"since", 0}});
    for (const auto& event : reply["events"]) names.push_back(event["event"].get<std::string>());
    return names;
  }
  bool Happened(const std::string& name) {
    const auto names = EventNames();
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  static int64_t Ms(int64_t since_ns) { return (RealClock().NowNs() - since_ns) / kNsPerMs; }

  testing::TemporaryFolder folder_;
  testing::DevicePage* page_ = testing::DevicePage::Make();
  testing::AgentProcess agent_{folder_.path(), page_};
};

// Everything is answered while NVML answers nothing, and the agent says that it does not.
TEST_F(LivenessTest, ADriverThatHangsStopsNothing) {
  ASSERT_EQ(agent_.Start(), "ready");
  TestMember before(MakeShare("before"));
  ASSERT_EQ(before.Join(), kWelcome);
  page_->hangs = true;
  ASSERT_TRUE(Eventually([&] { return Device()["driver_unresponsive_ms"].get<int64_t>() > 0; }));
  EXPECT_TRUE(Eventually([&] { return Happened("driver_slow"); }));
  EXPECT_FALSE(Happened("driver_slow_over"));

  const int64_t since_ns = RealClock().NowNs();
  const uint64_t beat = before.limits().header.heartbeat;
  const std::string folder = MakeShare("during");
  ASSERT_NE(folder, "");
  testing::StandIn other;
  TestMember during(folder, &other);
  ASSERT_EQ(during.Join(), kWelcome);
  EXPECT_TRUE(during.Charge(kMiB));
  ++during.usage().waiting;
  during.Send(MessageType::kLeaseWanted);
  EXPECT_TRUE(Eventually([&] { return (during.lease() & kLeaseOpen) != 0; }));
  // What would be measured is answered as not measured.
  during.usage().used_bytes = during.usage().overhead_bytes = kMiB;
  EXPECT_GE(Device()["used_bytes"].get<uint64_t>(), kMiB) << "NVML was last asked before that";
  const wire::ContextMade made{7, 0, wire::kMadeContext, kMiB};
  testing::SendFrame(during.socket(), static_cast<uint16_t>(MessageType::kContextMade), &made,
                     sizeof made);
  const auto settled = during.Await(MessageType::kContextSettled);
  ASSERT_TRUE(settled.has_value());
  EXPECT_LT(Ms(since_ns), 1500);
  EXPECT_TRUE(Eventually([&] { return before.limits().header.heartbeat > beat + 5; }));

  page_->hangs = false;
  EXPECT_TRUE(Eventually([&] { return Happened("driver_slow_over"); }));
  EXPECT_EQ(Device()["driver_unresponsive_ms"], 0);
}

TEST_F(LivenessTest, AMeasurementThatBeganBeforeTheDriverHungIsGivenUp) {
  ASSERT_EQ(agent_.Start(), "ready");
  TestMember member(MakeShare("a"));
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(member.Charge(kMiB));
  member.usage().overhead_bytes = kMiB;
  page_->hangs = true;
  const int64_t since_ns = RealClock().NowNs();
  const wire::ContextMade made{7, 0, wire::kMadeContext, kMiB};
  testing::SendFrame(member.socket(), static_cast<uint16_t>(MessageType::kContextMade), &made,
                     sizeof made);
  const auto settled = member.Await(MessageType::kContextSettled);
  ASSERT_TRUE(settled.has_value());
  wire::ContextSettled reply;
  std::memcpy(&reply, settled->body.data(), sizeof reply);
  EXPECT_EQ(reply.measured, wire::kNotMeasured);
  EXPECT_LT(Ms(since_ns), 1500);
}

// While NVML does not show a dead member's memory gone, nobody else is given it.
TEST_F(LivenessTest, MemoryOfTheDeadIsNotGivenWhileTheDriverHangs) {
  ASSERT_EQ(agent_.Start(), "ready");
  const std::string folder = MakeShare("a");
  auto dead = std::make_unique<testing::StandIn>();
  TestMember first(folder, dead.get());
  ASSERT_EQ(first.Join(), kWelcome);
  ASSERT_TRUE(first.Charge(900 * kMiB));
  page_->hangs = true;
  dead.reset();
  testing::StandIn other;
  TestMember second(folder, &other);
  ASSERT_EQ(second.Join(), kWelcome);
  EXPECT_FALSE(second.Charge(900 * kMiB));
  page_->hangs = false;
  EXPECT_TRUE(Eventually([&] { return second.Charge(900 * kMiB); }));
}

// Its memory is not given, but the time that it was promised is nobody's any more.
TEST_F(LivenessTest, TheRequestOfAShareThatIsOverIsFreeWhileTheDriverHangs) {
  ASSERT_EQ(agent_.Start(), "ready");
  const auto make = [&](const char* name) {
    return Call(folder_.path(),
                {{"op", "create_share"},
                 {"share", {{"name", name}, {"memory_bytes", kGiB}, {"compute_request", 0.8}}}});
  };
  const std::string folder = make("a")["share"]["directory"];
  auto dies = std::make_unique<testing::StandIn>();
  TestMember member(folder, dies.get());
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(member.Charge(kMiB));
  page_->hangs = true;
  Call(folder_.path(), {{"op", "remove_share"}, {"name", "a"}});
  EXPECT_FALSE(make("b").contains("share")) << "its last process is still there";
  dies.reset();
  EXPECT_TRUE(Eventually([&] { return make("b").contains("share"); }));
  EXPECT_EQ(Device()["shares"], 2);
  page_->hangs = false;
}

// A share whose owner and whose only program are killed while the driver hangs, so that it is there
// until the driver shows that program's memory gone.
class OverLivenessTest : public LivenessTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(agent_.Start(), "ready");
    int reported[2];
    ASSERT_EQ(::pipe(reported), 0);
    const pid_t owner = ::fork();
    if (owner == 0) {
      const std::string made = Make("a")["share"]["directory"];
      ::_exit(::write(reported[1], made.data(), made.size()) > 0 ? ::pause() : 1);
    }
    char path[256];
    const ssize_t bytes = ::read(reported[0], path, sizeof path);
    ASSERT_GT(bytes, 0);
    auto program = std::make_unique<testing::StandIn>();
    TestMember member({path, static_cast<size_t>(bytes)}, program.get());
    ASSERT_EQ(member.Join(), kWelcome);
    ASSERT_TRUE(member.Charge(kMiB));
    page_->hangs = true;
    ::kill(owner, SIGKILL);
    ASSERT_EQ(::waitpid(owner, nullptr, 0), owner);
    program.reset();
  }
  nlohmann::json Make(const char* name) {
    return Call(folder_.path(),
                {{"op", "create_share"},
                 {"share", {{"name", name}, {"memory_bytes", kGiB}, {"compute_request", 0.8}}}});
  }
};

TEST_F(OverLivenessTest, ItsRequestIsFree) {
  EXPECT_TRUE(Eventually([&] { return Make("b").contains("share"); }));
  EXPECT_EQ(Device()["shares"], 2);
  page_->hangs = false;
}

TEST_F(OverLivenessTest, ItsNameIsWaitedForButNotForEver) {
  const int64_t since_ns = RealClock().NowNs();
  EXPECT_FALSE(Make("a").contains("share"));
  EXPECT_GE(Ms(since_ns), 1000);
  page_->hangs = false;
  EXPECT_TRUE(Eventually([&] { return Make("a").contains("share"); }));
}

TEST_F(LivenessTest, TheAgentEndsThoughTheDriverHangs) {
  ASSERT_EQ(agent_.Start(), "ready");
  page_->hangs = true;
  ASSERT_TRUE(Eventually([&] { return Device()["driver_unresponsive_ms"].get<int64_t>() > 0; }));
  const int64_t since_ns = RealClock().NowNs();
  Call(folder_.path(), {{"op", "shutdown"}});
  EXPECT_TRUE(agent_.WaitForEnd(10'000));
  EXPECT_LT(Ms(since_ns), 4000);
  page_->hangs = false;
}

// Joining writes no file: who was a member is in the limits file.
TEST_F(LivenessTest, JoiningWaitsForNoDisk) {
  agent_.slow_disk_ms = 2000;
  ASSERT_EQ(agent_.Start(), "ready");
  const int64_t made_ns = RealClock().NowNs();
  const std::string folder = MakeShare("a");
  EXPECT_GE(Ms(made_ns), 2000) << "a share that is reported is on the disk";
  const int64_t since_ns = RealClock().NowNs();
  testing::StandIn other;
  TestMember a(folder);
  TestMember b(folder, &other);
  ASSERT_EQ(a.Join(), kWelcome);
  ASSERT_EQ(b.Join(), kWelcome);
  EXPECT_LT(Ms(since_ns), 1000);
  ASSERT_TRUE(a.Charge(300 * kMiB));
  ASSERT_TRUE(b.Charge(300 * kMiB));

  // Killed at once, and without having written: the next agent knows both, and what they hold.
  agent_.Kill();
  agent_.slow_disk_ms = 0;
  ASSERT_EQ(agent_.Start(), "ready");
  const auto shares = Call(folder_.path(), {{"op", "list_shares"}})["shares"];
  EXPECT_EQ(shares[0]["members"].size(), 2u);
  EXPECT_GE(shares[0]["devices"][0]["granted_bytes"].get<uint64_t>(), 600 * kMiB);
  const auto slot_a = a.slot();
  const auto slot_b = b.slot();
  ASSERT_TRUE(a.Rejoin());
  ASSERT_TRUE(b.Rejoin());
  EXPECT_EQ(a.slot(), slot_a);
  EXPECT_EQ(b.slot(), slot_b);
  EXPECT_FALSE(b.Charge(500 * kMiB));
}

// The loop is stuck in a handler while the process and its other threads go on.
TEST_F(LivenessTest, ALoopThatIsStuckHasNoHeartbeat) {
  ASSERT_EQ(agent_.Start(), "ready");
  TestMember a(MakeShare("a"));
  ASSERT_EQ(a.Join(), kWelcome);
  const auto& heartbeat = a.limits().header.heartbeat;
  const uint64_t first = heartbeat;
  ASSERT_TRUE(Eventually([&] { return heartbeat > first + 3; }));
  ++a.usage().waiting;
  a.Send(MessageType::kLeaseWanted);
  ASSERT_TRUE(Eventually([&] { return (a.lease() & kLeaseOpen) != 0; }));
  const uint32_t sequence = a.sequence();

  agent_.StickLoop(kStuckMs);
  const int64_t stuck_ns = RealClock().NowNs();
  ::usleep(40'000);
  const uint64_t beat = heartbeat;
  while (Ms(stuck_ns) < kStuckMs - 200) ASSERT_EQ(heartbeat, beat) << Ms(stuck_ns);
  ASSERT_TRUE(Eventually([&] { return heartbeat > beat; }));
  // Leases begin anew: what was used under failsafe mode is nobody's debt.
  EXPECT_TRUE(Eventually([&] { return a.sequence() > sequence; }));
}

}  // namespace
}  // namespace prorata::agent
