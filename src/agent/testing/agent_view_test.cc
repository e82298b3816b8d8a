// What a share shows of itself: the rows of its members, and their usage memory to whoever asks.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "agent/testing/testing_agent.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

using shm::UsageFile;
using testing::Call;
using testing::ConnectTo;
using testing::DevicePage;
using testing::Eventually;
using testing::kRefused;
using testing::kWelcome;
using testing::ReceiveFrame;
using testing::SendFrame;
using testing::StandIn;
using testing::TestMember;
using wire::MessageType;
using wire::UsageShown;
using wire::UsageWanted;

constexpr auto kWanted = static_cast<uint16_t>(MessageType::kUsageWanted);
constexpr auto kShown = static_cast<uint16_t>(MessageType::kUsageShown);

class ViewTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(agent_.Start(), "ready");
    const auto reply = Call(folder_.path(), {{"op", "create_share"},
                                             {"share", {{"name", "a"}, {"memory_bytes", kGiB}}}});
    share_ = reply["share"]["directory"].get<std::string>();
    member_ = std::make_unique<TestMember>(share_);
    ASSERT_EQ(member_->Join(), kWelcome);
  }
  const shm::MemberRow& row(uint32_t slot) { return member_->limits().members[slot]; }

  // One kUsageShown with its descriptor.
  UsageShown Receive(int socket, UniqueFd* fd) {
    UsageShown shown{~0u, 0, 0};
    wire::Frame<UsageShown> frame(MessageType::kUsageShown, {});
    iovec part{&frame, sizeof frame};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(socket, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) != sizeof frame) return shown;
    EXPECT_EQ(frame.header.type, kShown);
    if (const cmsghdr* rights = CMSG_FIRSTHDR(&message)) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(rights), sizeof number);
      fd->Reset(number);
    }
    return frame.message;
  }

  testing::TemporaryFolder folder_;
  DevicePage* page_ = DevicePage::Make();
  testing::AgentProcess agent_{folder_.path(), page_};
  std::string share_;
  std::unique_ptr<TestMember> member_;
};

TEST_F(ViewTest, WhoeverAsksSeesWhatAMemberUsesAndCannotChangeIt) {
  EXPECT_EQ(row(0).host_pid, static_cast<uint32_t>(::getpid()));
  EXPECT_EQ(member_->limits().header.members_end, 1u);
  const UniqueFd socket = ConnectTo(share_ + "/socket");
  const UsageWanted wanted{shm::kLimitsVersion, 0};
  ASSERT_TRUE(SendFrame(socket.get(), kWanted, &wanted, sizeof wanted));
  UniqueFd fd, none;
  const UsageShown shown = Receive(socket.get(), &fd);
  EXPECT_EQ(shown.slot, 0u);
  EXPECT_EQ(shown.serial, row(0).usage_serial);
  ASSERT_TRUE(fd);
  EXPECT_EQ(Receive(socket.get(), &none).slot, shm::kMaxMembers) << "that was all";
  EXPECT_FALSE(none);

  EXPECT_EQ(::mmap(nullptr, sizeof(UsageFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0),
            MAP_FAILED);
  void* seen = ::mmap(nullptr, sizeof(UsageFile), PROT_READ, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(seen, MAP_FAILED);
  ASSERT_TRUE(member_->Charge(12345));
  EXPECT_EQ(static_cast<const UsageFile*>(seen)->devices[0].used_bytes, 12345u);
  ::munmap(seen, sizeof(UsageFile));
}

TEST_F(ViewTest, BadQuestionsAreRefused) {
  auto answer = [&](const UsageWanted& wanted, int fd) -> uint16_t {
    const UniqueFd socket = ConnectTo(share_ + "/socket");
    SendFrame(socket.get(), kWanted, &wanted, sizeof wanted, fd);
    const auto received = ReceiveFrame(socket.get());
    return received ? received->type : 0;
  };
  EXPECT_EQ(answer({shm::kLimitsVersion + 1, 0}, -1), kRefused);
  EXPECT_EQ(answer({shm::kLimitsVersion, 0}, STDERR_FILENO), kRefused);
  EXPECT_EQ(answer({shm::kLimitsVersion, ~0u}, -1), kShown) << "the end, and nothing else";
  EXPECT_TRUE(member_->Charge(1));
}

TEST_F(ViewTest, AMemberSaysWhichNumberItHasForItself) {
  StandIn other;
  TestMember told(share_, &other);
  told.inner_pid = 7;
  ASSERT_EQ(told.Join(), kWelcome);
  EXPECT_EQ(row(1).inner_pid, 7u);
  EXPECT_GT(row(1).host_pid, 7u);
}

TEST_F(ViewTest, TheDeadCountByWhatTheyUsedUntilItIsGone) {
  constexpr uint64_t kHeld = 5 * kMiB;
  int ready[2], over[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(over), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    TestMember member(share_);
    const bool good = member.Join() == kWelcome && member.Charge(kHeld);
    page_->Change(static_cast<int64_t>(kHeld));
    char byte = good ? '+' : '-';
    [[maybe_unused]] ssize_t ignored = ::write(ready[1], &byte, 1);
    ignored = ::read(over[0], &byte, 1);
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, '+');
  EXPECT_EQ(row(1).host_pid, static_cast<uint32_t>(child));
  EXPECT_EQ(row(1).inner_pid, static_cast<uint32_t>(child));
  EXPECT_NE(row(1).usage_serial, 0u);
  EXPECT_NE(row(1).usage_serial, row(0).usage_serial);
  EXPECT_EQ(member_->limits().header.members_end, 2u);
  const std::atomic<uint64_t>& grant = member_->limits().grants[1].bytes[0];
  EXPECT_GT(grant, kHeld) << "there is slack in it";
  ASSERT_EQ(::write(over[1], "x", 1), 1);
  // A zombie is dead, and still has its entry on the test's device.
  EXPECT_TRUE(Eventually([&] { return row(1).usage_serial == 0; }));
  EXPECT_TRUE(grant == kHeld || grant == 0);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(Eventually([&] { return row(1).host_pid == 0; }));
  EXPECT_EQ(grant, 0u);
  EXPECT_EQ(member_->limits().header.members_end, 1u);
  for (const int fd : {ready[0], ready[1], over[0], over[1]}) ::close(fd);
}

TEST_F(ViewTest, UtilizationIsDeviceTimeOverTime) {
  const shm::Utilization& utilization = member_->limits().utilization[0];
  EXPECT_TRUE(Eventually([&] { return utilization.samples > 2; }));
  EXPECT_EQ(row(0).busy_ppm[0], 0u);
  // Kernels tell their time when they end: more at once than passed. Shown as busy, not as peaks.
  uint64_t seen = 0;
  EXPECT_TRUE(Eventually(
      [&] {
        if (utilization.samples != seen) member_->usage().device_time_ns += 200 * kNsPerMs;
        seen = utilization.samples;
        return row(0).busy_ppm[0] >= 900'000;
      },
      30'000));
  for (uint32_t i = 0; i < shm::kUtilizationSamples; ++i) {
    EXPECT_LE(utilization.busy_ppm[i], 1'000'000u);
  }
  EXPECT_TRUE(Eventually([&] { return row(0).busy_ppm[0] == 0; }, 30'000)) << "and then it is over";
}

TEST_F(ViewTest, ANewAgentGivesMembersNewSerials) {
  const uint64_t before = row(0).usage_serial;
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  ASSERT_TRUE(member_->Rejoin());
  EXPECT_TRUE(Eventually([&] { return row(0).usage_serial != 0; }));
  EXPECT_GT(row(0).usage_serial, before);
  EXPECT_EQ(row(0).host_pid, static_cast<uint32_t>(::getpid()));
}

}  // namespace
}  // namespace prorata::agent
