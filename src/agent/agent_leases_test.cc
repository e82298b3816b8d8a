// Leases over real sockets: what members see in the lease word when they want, idle, drain or stop.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/testing_agent.h"

namespace prorata::agent {
namespace {

using protocol::kLeaseContended;
using protocol::kLeaseOpen;
using protocol::MessageType;
using testing::Call;
using testing::Eventually;
using testing::TestMember;

constexpr auto kWelcome = static_cast<uint16_t>(MessageType::kWelcome);

class LeaseTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(agent_.Start(), "ready"); }

  std::string MakeShare(const std::string& name, double request, double limit = 1) {
    const nlohmann::json reply = Call(folder_.path(), {{"op", "create_share"},
                                                       {"share",
                                                        {{"name", name},
                                                         {"memory_bytes", kGiB},
                                                         {"compute_request", request},
                                                         {"compute_limit", limit}}}});
    return reply["share"]["directory"].get<std::string>();
  }

  testing::TemporaryFolder folder_;
  testing::DevicePage* page_ = testing::DevicePage::Make();
  testing::AgentProcess agent_{folder_.path(), page_};
};

bool Open(const TestMember& member) { return (member.lease() & kLeaseOpen) != 0; }
bool Contended(const TestMember& member) { return (member.lease() & kLeaseContended) != 0; }

// As a launching thread does it: counted, said, and gone again when the lease is open.
bool Want(TestMember& member, int ms = 2000) {
  ++member.usage().waiting;
  member.Say(MessageType::kLeaseWanted);
  const bool open = Eventually([&] { return Open(member); }, ms);
  --member.usage().waiting;
  if (open) ++member.usage().launches;
  return open;
}

void Drain(TestMember& member) {
  member.usage().drained_sequence = member.sequence();
  member.Say(MessageType::kLeaseDrained);
}

TEST_F(LeaseTest, AloneTheLeaseIsOpen) {
  TestMember member(MakeShare("a", 0.5));
  ASSERT_EQ(member.Join(), kWelcome);
  EXPECT_TRUE(Eventually([&] { return Open(member); }));
  EXPECT_FALSE(Contended(member));
}

TEST_F(LeaseTest, TwoTakeTurns) {
  TestMember a(MakeShare("a", 0.5));
  TestMember b(MakeShare("b", 0.5));
  ASSERT_EQ(a.Join(), kWelcome);
  ASSERT_EQ(b.Join(), kWelcome);
  ASSERT_TRUE(Want(a));
  for (int turn = 0; turn < 20; ++turn) {
    TestMember& holder = turn % 2 == 0 ? a : b;
    TestMember& next = turn % 2 == 0 ? b : a;
    holder.usage().device_time_ns += 9'000'000;
    ++next.usage().waiting;
    next.Say(MessageType::kLeaseWanted);
    ASSERT_TRUE(Eventually([&] { return !Open(holder); })) << "turn " << turn;
    EXPECT_FALSE(Open(next)) << "two hold the device";
    // A busy program waits for its next turn before the last one has drained; so the next turn is
    // contended from its start, however late this test looks.
    ++holder.usage().waiting;
    holder.Say(MessageType::kLeaseWanted);
    Drain(holder);
    ASSERT_TRUE(Eventually([&] { return Open(next); })) << "turn " << turn;
    EXPECT_TRUE(Contended(next));
    --holder.usage().waiting;
    --next.usage().waiting;
    ++next.usage().launches;
  }
}

TEST_F(LeaseTest, AnIdleHolderLosesItsTurnAtOnce) {
  TestMember a(MakeShare("a", 0.5));
  TestMember b(MakeShare("b", 0.5));
  ASSERT_EQ(a.Join(), kWelcome);
  ASSERT_EQ(b.Join(), kWelcome);
  ASSERT_TRUE(Want(a));
  a.usage().backlog_ns = 0;
  ++b.usage().waiting;
  b.Say(MessageType::kLeaseWanted);
  // It was called back or marked contended; either way it says that it has nothing.
  ASSERT_TRUE(Eventually([&] { return !Open(a) || Contended(a); }));
  a.Say(MessageType::kLeaseIdle);
  Drain(a);
  EXPECT_TRUE(Eventually([&] { return Open(b); }));
}

TEST_F(LeaseTest, AStoppedHolderIsPassedOver) {
  const std::string folder_a = MakeShare("a", 0.5);
  TestMember b(MakeShare("b", 0.5));
  ASSERT_EQ(b.Join(), kWelcome);
  const pid_t pid = ::fork();
  if (pid == 0) {
    TestMember a(folder_a);
    if (a.Join() != kWelcome || !Want(a)) ::_exit(1);
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, WUNTRACED), pid);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_TRUE(Want(b, 5000));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST_F(LeaseTest, AStoppedMemberDoesNotKeepItsShareFromItsTurns) {
  const std::string folder_a = MakeShare("a", 0.5);
  TestMember a(folder_a);
  TestMember b(MakeShare("b", 0.5));
  ASSERT_EQ(a.Join(), kWelcome);
  ASSERT_EQ(b.Join(), kWelcome);
  a.usage().launches = 1;
  const pid_t pid = ::fork();
  if (pid == 0) {
    TestMember stopped(folder_a);
    if (stopped.Join() != kWelcome || !Want(stopped)) ::_exit(1);
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, WUNTRACED), pid);
  ASSERT_TRUE(WIFSTOPPED(status));
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(Want(b, 5000)) << "turn " << turn;
    if (!Open(a)) Drain(a);
    ++a.usage().waiting;
    a.Say(MessageType::kLeaseWanted);
    ASSERT_TRUE(Eventually([&] { return !Open(b); }));
    Drain(b);
    EXPECT_TRUE(Eventually([&] { return Open(a); })) << "turn " << turn;
    --a.usage().waiting;
    ++a.usage().launches;
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST_F(LeaseTest, ADeadHoldersTurnGoesOn) {
  const std::string folder_a = MakeShare("a", 0.5);
  TestMember b(MakeShare("b", 0.5));
  ASSERT_EQ(b.Join(), kWelcome);
  const pid_t pid = ::fork();
  if (pid == 0) {
    TestMember a(folder_a);
    const bool got = a.Join() == kWelcome && Want(a);
    ::raise(SIGKILL);
    ::_exit(got);
  }
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(Want(b));
}

TEST_F(LeaseTest, ALimitClosesTheLeaseOfOneAlone) {
  TestMember member(MakeShare("a", 0, 0.25));
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(Eventually([&] { return Open(member); }));
  member.usage().launches = 1;
  member.usage().device_time_ns += 40'000'000;
  EXPECT_TRUE(Eventually([&] { return !Open(member); }));
  Drain(member);
  EXPECT_TRUE(Want(member));
}

TEST_F(LeaseTest, LeasesWorkAgainAfterTheAgentWasKilled) {
  TestMember a(MakeShare("a", 0.5));
  TestMember b(MakeShare("b", 0.5));
  ASSERT_EQ(a.Join(), kWelcome);
  ASSERT_EQ(b.Join(), kWelcome);
  ASSERT_TRUE(Want(a));
  const uint32_t sequence = a.sequence();
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  ASSERT_TRUE(a.Rejoin());
  ASSERT_TRUE(b.Rejoin());
  EXPECT_GT(a.sequence(), sequence);
  ++b.usage().waiting;
  b.Say(MessageType::kLeaseWanted);
  ASSERT_TRUE(Eventually([&] { return !Open(a); }));
  Drain(a);
  ASSERT_TRUE(Eventually([&] { return Open(b); }));
  --b.usage().waiting;
  ++b.usage().launches;
  ++a.usage().waiting;
  a.Say(MessageType::kLeaseWanted);
  ASSERT_TRUE(Eventually([&] { return !Open(b); }));
  Drain(b);
  EXPECT_TRUE(Eventually([&] { return Open(a); }));
}

}  // namespace
}  // namespace prorata::agent
