// Leases over real sockets: what members see in the lease word when they want, idle, drain or stop.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/testing/testing_agent.h"

namespace prorata::agent {
namespace {

using shm::kLeaseContended;
using shm::kLeaseOpen;
using testing::Call;
using testing::Eventually;
using testing::kWelcome;
using testing::TestMember;
using wire::MessageType;

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
bool Want(TestMember& member) {
  ++member.usage().waiting;
  member.Send(MessageType::kLeaseWanted);
  const bool open = Eventually([&] { return Open(member); });
  --member.usage().waiting;
  if (open) ++member.usage().launches;
  member.usage().occupied_ns += 1'000'000'000;  // it leaves no gaps
  return open;
}

void Drain(TestMember& member) {
  member.usage().drained_sequence = member.sequence();
  member.Send(MessageType::kLeaseDrained);
}

TEST_F(LeaseTest, AloneTheLeaseIsOpen) {
  TestMember member(MakeShare("a", 0.5));
  ASSERT_EQ(member.Join(), kWelcome);
  EXPECT_TRUE(Eventually([&] { return Open(member); }));
  EXPECT_FALSE(Contended(member));
}

// Two busy programs. Whoever has the lease has ten seconds of work queued, so that it is not passed
// over however slowly this test runs; revoked, it waits for its next slice and then drains.
TEST_F(LeaseTest, TwoTakeTurns) {
  TestMember a(MakeShare("a", 0.5));
  testing::StandIn other;
  TestMember b(MakeShare("b", 0.5), &other);
  TestMember* members[] = {&a, &b};
  bool held[] = {false, false};
  int slices[] = {0, 0};
  uint32_t seen[] = {0, 0};
  for (TestMember* member : members) {
    ASSERT_EQ(member->Join(), kWelcome);
    ++member->usage().waiting;
    member->Send(MessageType::kLeaseWanted);
  }
  const bool both_had_ten = Eventually([&] {
    // By the same word before and after: a's lease was open when b's was read.
    const uint32_t lease_a = a.lease();
    const bool both = (lease_a & kLeaseOpen) != 0 && Open(b) && a.lease() == lease_a;
    EXPECT_FALSE(both) << "two hold the device";
    for (int i = 0; i < 2; ++i) {
      TestMember& member = *members[i];
      // By the sequence, as the client library does it: a slice may be over before it was noticed.
      const uint32_t lease = member.lease();
      if (lease == seen[i]) continue;
      seen[i] = lease;
      const bool open = (lease & kLeaseOpen) != 0;
      if (open && !held[i]) {
        member.usage().backlog_ns = 10'000'000'000;
        member.usage().device_time_ns += 1'000'000'000;
        member.usage().occupied_ns += 1'000'000'000;  // it leaves no gaps
        --member.usage().waiting;
        ++member.usage().launches;
        ++slices[i];
      } else if (!open) {
        if (held[i]) ++member.usage().waiting;
        member.Send(MessageType::kLeaseWanted);
        member.usage().backlog_ns = 0;
        Drain(member);
      }
      held[i] = open;
    }
    return slices[0] >= 10 && slices[1] >= 10;
  });
  EXPECT_TRUE(both_had_ten) << slices[0] << " and " << slices[1] << " slices";
  EXPECT_LE(std::abs(slices[0] - slices[1]), 4) << "equal requests";
  EXPECT_TRUE(Eventually([&] { return Contended(held[0] ? a : b); }));
}

TEST_F(LeaseTest, AnIdleHolderLosesItsTurnAtOnce) {
  TestMember a(MakeShare("a", 0.5));
  testing::StandIn other;
  TestMember b(MakeShare("b", 0.5), &other);
  ASSERT_EQ(a.Join(), kWelcome);
  ASSERT_EQ(b.Join(), kWelcome);
  ASSERT_TRUE(Want(a));
  a.usage().backlog_ns = 0;
  ++b.usage().waiting;
  b.Send(MessageType::kLeaseWanted);
  // It was revoked or marked contended; either way it says that it has nothing.
  ASSERT_TRUE(Eventually([&] { return !Open(a) || Contended(a); }));
  a.Send(MessageType::kLeaseIdle);
  Drain(a);
  EXPECT_TRUE(Eventually([&] { return Open(b); }));
}

TEST_F(LeaseTest, AStoppedHolderIsStalled) {
  const std::string folder_a = MakeShare("a", 0.5);
  testing::StandIn other;
  TestMember b(MakeShare("b", 0.5), &other);
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
  EXPECT_TRUE(Want(b));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST_F(LeaseTest, AStoppedMemberDoesNotKeepItsShareFromItsTurns) {
  const std::string folder_a = MakeShare("a", 0.5);
  TestMember a(folder_a);
  testing::StandIn other;
  TestMember b(MakeShare("b", 0.5), &other);
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
  for (int slice = 0; slice < 3; ++slice) {
    ASSERT_TRUE(Want(b)) << "slice " << slice;
    if (!Open(a)) Drain(a);
    ++a.usage().waiting;
    a.Send(MessageType::kLeaseWanted);
    ASSERT_TRUE(Eventually([&] { return !Open(b); }));
    Drain(b);
    EXPECT_TRUE(Eventually([&] { return Open(a); })) << "slice " << slice;
    --a.usage().waiting;
    ++a.usage().launches;
    a.usage().occupied_ns += 1'000'000'000;
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST_F(LeaseTest, ADeadHoldersTurnGoesOn) {
  const std::string folder_a = MakeShare("a", 0.5);
  testing::StandIn other;
  TestMember b(MakeShare("b", 0.5), &other);
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
  ASSERT_TRUE(Want(member));
  member.usage().backlog_ns = 1'000'000;
  // By the sequence: the limit may have let it open again before this looks.
  const uint32_t sequence = member.sequence();
  // By the agent's clock: whatever it says of its kernels.
  EXPECT_TRUE(Eventually([&] { return member.sequence() != sequence; })) << "it was not closed";
  member.usage().backlog_ns = 0;
  Drain(member);
  EXPECT_TRUE(Want(member));
}

TEST_F(LeaseTest, LeasesWorkAgainAfterTheAgentWasKilled) {
  TestMember a(MakeShare("a", 0.5));
  testing::StandIn other;
  TestMember b(MakeShare("b", 0.5), &other);
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
  b.Send(MessageType::kLeaseWanted);
  ASSERT_TRUE(Eventually([&] { return !Open(a); }));
  Drain(a);
  ASSERT_TRUE(Eventually([&] { return Open(b); }));
  --b.usage().waiting;
  ++b.usage().launches;
  ++a.usage().waiting;
  a.Send(MessageType::kLeaseWanted);
  ASSERT_TRUE(Eventually([&] { return !Open(b); }));
  Drain(b);
  EXPECT_TRUE(Eventually([&] { return Open(a); }));
}

}  // namespace
}  // namespace prorata::agent
