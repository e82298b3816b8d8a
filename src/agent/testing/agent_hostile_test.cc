// What members and users may send: anything. It must be refused, and harm nobody else.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "agent/server/member_messages.h"
#include "agent/testing/testing_agent.h"

namespace prorata::agent {
namespace {

using testing::Call;
using testing::ConnectTo;
using testing::kRefused;
using testing::kWelcome;
using testing::ReceiveFrame;
using testing::SendFrame;
using testing::TestMember;
using wire::MessageType;

constexpr auto kJoin = static_cast<uint16_t>(MessageType::kJoin);

class HostileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(agent_.Start(), "ready");
    const auto reply = Call(folder_.path(), {{"op", "create_share"},
                                             {"share", {{"name", "a"}, {"memory_bytes", kGiB}}}});
    share_ = reply["share"]["directory"].get<std::string>();
    good_ = std::make_unique<TestMember>(share_);
    ASSERT_EQ(good_->Join(), kWelcome);
  }
  void TearDown() override {
    // Whatever was sent: the agent is there, and the member next to it is served.
    EXPECT_TRUE(good_->Charge(1000));
    EXPECT_TRUE(Call(folder_.path(), {{"op", "hello"}}).contains("pid"));
  }

  // Sends a join with this descriptor; the answer's type, 0 for none.
  uint16_t JoinWith(int fd, uint32_t version = shm::kLimitsVersion) {
    const UniqueFd socket = ConnectTo(share_ + "/socket");
    const wire::Join join{version, 0, 1, wire::kNoSlot};
    SendFrame(socket.get(), kJoin, &join, sizeof join, fd);
    const auto answer = ReceiveFrame(socket.get());
    return answer ? answer->type : 0;
  }

  testing::TemporaryFolder folder_;
  testing::DevicePage* page_ = testing::DevicePage::Make();
  testing::AgentProcess agent_{folder_.path(), page_};
  std::string share_;
  std::unique_ptr<TestMember> good_;
};

TEST_F(HostileTest, UsageMemoryThatIsNotWhatItShouldBe) {
  EXPECT_EQ(JoinWith(-1), kRefused);
  const UniqueFd file(::open((folder_.path() + "/f").c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(::ftruncate(file.get(), sizeof(shm::UsageFile)), 0);
  EXPECT_EQ(JoinWith(file.get()), kRefused);
  const UniqueFd unsealed(::memfd_create("u", MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), sizeof(shm::UsageFile)), 0);
  EXPECT_EQ(JoinWith(unsealed.get()), kRefused);
  const UniqueFd small(::memfd_create("u", MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(small.get(), 4), 0);
  ::fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_EQ(JoinWith(small.get()), kRefused);
  ::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_EQ(JoinWith(unsealed.get()), kRefused) << "all zero: no usage memory";
}

TEST_F(HostileTest, AnotherVersionIsReportedSo) {
  const UniqueFd socket = ConnectTo(share_ + "/socket");
  const wire::Join join{99, 0, 1, wire::kNoSlot};
  const UniqueFd fd(::memfd_create("u", 0));
  SendFrame(socket.get(), kJoin, &join, sizeof join, fd.get());
  const auto answer = ReceiveFrame(socket.get());
  ASSERT_TRUE(answer.has_value());
  wire::Refused refused;
  std::memcpy(&refused, answer->body.data(), sizeof refused);
  EXPECT_EQ(refused.reason, static_cast<uint32_t>(wire::RefusedReason::kVersion));
}

TEST_F(HostileTest, AMessageBeforeJoiningIsRefused) {
  const UniqueFd socket = ConnectTo(share_ + "/socket");
  const wire::GrantRequest request{1, 0, 0, 5};
  SendFrame(socket.get(), static_cast<uint16_t>(MessageType::kGrantRequest), &request,
            sizeof request);
  const auto answer = ReceiveFrame(socket.get());
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->type, kRefused);
}

// Numbers that are out of range are refused or answered, whatever `used` says.
TEST_F(HostileTest, NumbersBeyondEverything) {
  testing::StandIn liar;
  for (const uint64_t used : {uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - kGiB}) {
    TestMember own(share_, &liar);
    ASSERT_EQ(own.Join(), kWelcome);
    own.usage().used_bytes = used;  // more than there is, or less than nothing
    own.usage().overhead_bytes = ~used;
    for (const uint64_t needed : {~uint64_t{0}, uint64_t{1} << 63, kGiB + 1}) {
      const auto reply = own.Ask(needed);
      ASSERT_TRUE(reply.has_value());
      EXPECT_EQ(reply->result, wire::GrantResult::kShareFull) << needed;
    }
    EXPECT_LE(own.grant(), kGiB);
    const auto share = Call(folder_.path(), {{"op", "list_shares"}})["shares"][0];
    EXPECT_LE(share["devices"][0]["used_bytes"].get<uint64_t>(), kGiB);
    EXPECT_LE(share["devices"][0]["overhead_bytes"].get<uint64_t>(), kGiB);
    // The neighbour has what is its own.
    EXPECT_TRUE(good_->Charge(100 * kMiB));
    good_->Uncharge(100 * kMiB);
  }
}

TEST_F(HostileTest, DevicesThatTheShareHasNot) {
  testing::StandIn liar;
  for (const uint32_t device : {1u, 15u, 16u, 255u, 0x80000000u, ~0u}) {
    for (const MessageType type :
         {MessageType::kGrantRequest, MessageType::kContextMade, MessageType::kLeaseWanted,
          MessageType::kLeaseIdle, MessageType::kLeaseDrained}) {
      TestMember own(share_, &liar);
      ASSERT_EQ(own.Join(), kWelcome);
      const bool event = type >= MessageType::kLeaseWanted;
      const wire::GrantRequest request{1, device, 0, kMiB};  // laid out as ContextMade, too
      const wire::LeaseEvent lease{device, 0};
      SendFrame(own.socket(), static_cast<uint16_t>(type),
                event ? static_cast<const void*>(&lease) : &request,
                event ? sizeof lease : sizeof request);
      const auto answer = own.Await(MessageType::kRefused);
      ASSERT_TRUE(answer.has_value()) << device;
      EXPECT_FALSE(ReceiveFrame(own.socket()).has_value()) << "and the connection ends";
    }
  }
}

// It would have the memory of two shares.
TEST_F(HostileTest, AMemberOfAnotherShare) {
  const auto made = Call(
      folder_.path(), {{"op", "create_share"}, {"share", {{"name", "b"}, {"memory_bytes", kGiB}}}});
  const std::string other = made["share"]["directory"].get<std::string>();
  testing::StandIn guest;
  TestMember at_home(share_, &guest);
  ASSERT_EQ(at_home.Join(), kWelcome);
  TestMember abroad(other, &guest);
  EXPECT_EQ(abroad.Join(), kRefused);
  EXPECT_EQ(abroad.Join(at_home.slot()), kRefused);
  EXPECT_TRUE(at_home.Charge(kMiB)) << "and stays what it is";
  const auto shares = Call(folder_.path(), {{"op", "list_shares"}})["shares"];
  EXPECT_EQ(shares[0]["members"].size(), 2u);
  EXPECT_EQ(shares[1]["members"].size(), 0u);
  // With exec a process becomes another program: its connection ends, and it may join elsewhere.
  at_home.Disconnect();
  EXPECT_EQ(abroad.Join(), kWelcome);
  const auto after = Call(folder_.path(), {{"op", "list_shares"}})["shares"];
  EXPECT_EQ(after[0]["members"].size(), 1u);
  EXPECT_EQ(after[1]["members"].size(), 1u);
}

TEST_F(HostileTest, RandomBytesInRandomChunks) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const bool control = seed % 3 == 0;
    const UniqueFd socket = ConnectTo(control ? folder_.path() + "/control" : share_ + "/socket");
    ASSERT_TRUE(socket) << "seed " << seed;
    for (uint32_t i = 0; i < 1 + random() % 6; ++i) {
      std::string bytes(1 + random() % 200, '\0');
      for (char& c : bytes) c = random() % 3 == 0 ? static_cast<char>(random()) : '\0';
      if (::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
    }
  }
}

TEST_F(HostileTest, RandomMessagesOfAMember) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(seed);
    TestMember own(share_);
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (own.Join() != kWelcome) ::_exit(1);
      // Its usage memory lies, too.
      auto* words = reinterpret_cast<uint64_t*>(&own.usage());
      for (size_t i = 0; i < sizeof(shm::DeviceUsage) / 8; ++i)
        words[i] = random() * 0x100000001ULL;
      for (int i = 0; i < 50; ++i) {
        std::string body(8 * (random() % 8), '\0');
        for (char& c : body) c = random() % 4 == 0 ? static_cast<char>(random()) : '\0';
        if (!SendFrame(own.socket(), static_cast<uint16_t>(random() % 32), body.data(),
                       body.size())) {
          break;
        }
      }
      ::_exit(0);
    }
    ::waitpid(pid, nullptr, 0);
  }
  EXPECT_TRUE(testing::Eventually([&] {
    const auto shares = Call(folder_.path(), {{"op", "list_shares"}})["shares"];
    return shares[0]["members"].size() == 1;
  }));
}

// Of shared memory, too: what was never asked, of blocks that are not there, of others' names.
TEST_F(HostileTest, SharedMemoryThatIsNotThere) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    TestMember own(share_);
    if (own.Join() != kWelcome) ::_exit(1);
    const auto say = [&](MessageType type, const auto& message) {
      SendFrame(own.socket(), static_cast<uint16_t>(type), &message, sizeof message);
    };
    say(MessageType::kMemoryTaken, wire::MemoryTaken{77, 1, 0});
    say(MessageType::kMemoryLetGo, wire::MemoryLetGo{1, 77});
    // "Somebody pays for this, and it is not me": believed of nobody who was not there before.
    say(MessageType::kMemoryShared, wire::MemoryShared{2, 78, ~uint64_t{0}, {{5, 5}}, 0, 0});
    // More than there is, charged to itself; then it lets go.
    say(MessageType::kMemoryShared, wire::MemoryShared{3, 79, ~uint64_t{0}, {{6, 6}}, 0, 1});
    say(MessageType::kMemoryOpening, wire::MemoryOpening{4, {{6, 6}}});
    say(MessageType::kMemoryLetGo, wire::MemoryLetGo{5, 79});
    wire::MemoryAnswer answer{};
    for (const auto result :
         {wire::MemoryResult::kNoted, wire::MemoryResult::kTooMany, wire::MemoryResult::kNoted,
          wire::MemoryResult::kNoted, wire::MemoryResult::kNoted}) {
      const auto frame = own.Await(MessageType::kMemoryAnswer);
      if (!frame || frame->body.size() != sizeof answer) ::_exit(2);
      std::memcpy(&answer, frame->body.data(), sizeof answer);
      if (answer.result != result) ::_exit(3);
    }
    ::_exit(own.grant() == 0 ? 0 : 4);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The answer to a request that cannot be granted looks for the dead first, and finds the asker.
TEST_F(HostileTest, ARequestThatOutlivesItsProcess) {
  ASSERT_TRUE(good_->Charge(kGiB / 2));
  const pid_t pid = ::fork();
  if (pid == 0) {
    TestMember own(share_);
    if (own.Join() != kWelcome) ::_exit(1);
    ::kill(agent_.pid(), SIGSTOP);
    for (uint64_t id = 1; id <= 3; ++id) {
      const wire::GrantRequest request{id, 0, 0, kGiB};
      SendFrame(own.socket(), static_cast<uint16_t>(MessageType::kGrantRequest), &request,
                sizeof request);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  ::kill(agent_.pid(), SIGCONT);
}

// What a context takes is learned from members, and reserved by those of all shares: a liar with
// much memory beside a small charge made everybody's contexts fail.
TEST_F(HostileTest, AHugeContextIsNotLearnedForOthers) {
  const auto made = Call(folder_.path(), {{"op", "create_share"},
                                          {"share", {{"name", "b"}, {"memory_bytes", 6 * kGiB}}}});
  testing::StandIn liar;
  TestMember own(made["share"]["directory"].get<std::string>(), &liar);
  ASSERT_EQ(own.Join(), kWelcome);
  const uint64_t guess = good_->limits().devices[0].context_overhead_bytes;
  page_->EntryOf(liar.pid())->bytes = 6 * kGiB;
  for (int i = 0; i < 20; ++i) {
    own.usage().used_bytes = own.usage().overhead_bytes = kMiB;
    const wire::ContextMade context{7, 0, wire::kMadeContext, kMiB};
    SendFrame(own.socket(), static_cast<uint16_t>(MessageType::kContextMade), &context,
              sizeof context);
    ASSERT_TRUE(own.Await(MessageType::kContextSettled).has_value());
  }
  EXPECT_LE(good_->limits().devices[0].context_overhead_bytes, 4 * guess);
}

// Each of these messages made the audit forget what it had found of the member.
TEST_F(HostileTest, AskingAgainAndAgainHidesNothingFromTheAudit) {
  for (const uint32_t what : {wire::kMadeOther, wire::kMadeContext}) {
    const std::string name = what == wire::kMadeOther ? "b" : "c";
    const auto made = Call(folder_.path(), {{"op", "create_share"},
                                            {"share", {{"name", name}, {"memory_bytes", kGiB}}}});
    testing::StandIn liar;
    TestMember own(made["share"]["directory"].get<std::string>(), &liar);
    ASSERT_EQ(own.Join(), kWelcome);
    page_->EntryOf(liar.pid())->bytes = 3 * kGiB;
    EXPECT_TRUE(testing::Eventually(
        [&] {
          own.usage().used_bytes = own.usage().overhead_bytes = 0;
          const wire::ContextMade context{7, 0, what, 0};
          SendFrame(own.socket(), static_cast<uint16_t>(MessageType::kContextMade), &context,
                    sizeof context);
          own.Await(MessageType::kContextSettled);
          const auto shares = Call(folder_.path(), {{"op", "list_shares"}})["shares"];
          return shares.back()["devices"][0]["bypass_suspected"].get<bool>();
        },
        20'000))
        << what;
  }
}

// The oldest of those that say nothing go, and who comes and speaks is served.
TEST_F(HostileTest, IdleConnectionsMakeRoomForOthers) {
  for (const std::string& path : {share_ + "/socket", folder_.path() + "/control"}) {
    std::vector<UniqueFd> sockets;
    for (int i = 0; i < 700; ++i) {
      sockets.push_back(ConnectTo(path));
      ASSERT_TRUE(sockets.back()) << i;
    }
    EXPECT_FALSE(ReceiveFrame(sockets.front().get()).has_value())
        << "closed, long before it is due";
    testing::StandIn newcomer;
    TestMember own(share_, &newcomer);
    EXPECT_EQ(own.Join(), kWelcome);
    EXPECT_TRUE(Call(folder_.path(), {{"op", "hello"}}).contains("pid"));
  }
}

// Following events is no way to keep others of the same user from asking.
TEST_F(HostileTest, FollowersHaveALimit) {
  const std::string follow = R"({"op": "events", "follow": true})";
  std::vector<UniqueFd> sockets;
  std::string last;
  for (int i = 0; i < 40; ++i) {
    sockets.push_back(ConnectTo(folder_.path() + "/control"));
    SendFrame(sockets.back().get(), static_cast<uint16_t>(MessageType::kControlJson), follow.data(),
              follow.size());
    const auto answer = ReceiveFrame(sockets.back().get());
    ASSERT_TRUE(answer.has_value()) << i;
    last.assign(answer->body.begin(), answer->body.end());
  }
  EXPECT_NE(last.find("too_many_connections"), std::string::npos) << last;
  EXPECT_TRUE(Call(folder_.path(), {{"op", "hello"}}).contains("pid"));
}

TEST(MemberMessages, DecodesOnlyWhatAMemberMaySay) {
  const uint8_t zeros[64] = {};
  auto decode = [&](MessageType type, uint32_t bytes) {
    return DecodeMemberMessage({bytes, static_cast<uint16_t>(type), wire::kWireVersion}, zeros, 1)
        .has_value();
  };
  EXPECT_TRUE(decode(MessageType::kJoin, sizeof(wire::Join)));
  EXPECT_TRUE(decode(MessageType::kJoin, 64)) << "a newer version's";
  EXPECT_FALSE(decode(MessageType::kJoin, sizeof(wire::Join) - 1));
  EXPECT_TRUE(decode(MessageType::kGrantRequest, sizeof(wire::GrantRequest)));
  EXPECT_TRUE(decode(MessageType::kMemoryShared, sizeof(wire::MemoryShared)));
  EXPECT_FALSE(decode(MessageType::kMemoryShared, sizeof(wire::MemoryShared) - 1));
  EXPECT_TRUE(decode(MessageType::kMemoryOpening, sizeof(wire::MemoryOpening)));
  EXPECT_TRUE(decode(MessageType::kMemoryLetGo, sizeof(wire::MemoryLetGo)));
  EXPECT_TRUE(decode(MessageType::kMemoryTaken, sizeof(wire::MemoryTaken)));
  EXPECT_FALSE(decode(MessageType::kMemoryTake, 64));
  EXPECT_TRUE(decode(MessageType::kLeaseIdle, sizeof(wire::LeaseEvent)));
  EXPECT_FALSE(decode(MessageType::kWelcome, 64));
  EXPECT_FALSE(decode(MessageType::kControlJson, 64));
  EXPECT_FALSE(decode(static_cast<MessageType>(0), 64));
  wire::GrantRequest outside{1, 1, 0, 5};
  EXPECT_FALSE(
      DecodeMemberMessage({sizeof outside, 3, 1}, reinterpret_cast<const uint8_t*>(&outside), 1));
}

}  // namespace
}  // namespace prorata::agent
