// What a member writes of itself: each word of its usage memory may hold anything.
// docs/design/trust.md says of each what the worst is, and names these tests.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include "agent/testing/testing_agent.h"

namespace prorata::agent {
namespace {

using nlohmann::json;
using testing::Call;
using testing::Eventually;
using testing::kWelcome;
using testing::TestMember;
using wire::MessageType;

// A liar and an honest member, each with a share of its own of 1 GiB and a third of the time.
class LiesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(agent_.Start(), "ready");
    honest_ = std::make_unique<TestMember>(MakeShare("honest"));
    ASSERT_EQ(honest_->Join(), kWelcome);
    liar_ = std::make_unique<TestMember>(MakeShare("liar"), &liars_process_);
    ASSERT_EQ(liar_->Join(), kWelcome);
  }
  std::string MakeShare(const std::string& name) {
    return Call(folder_.path(), {{"op", "create_share"},
                                 {"share",
                                  {{"name", name},
                                   {"memory_bytes", kGiB},
                                   {"compute_request", 0.33}}}})["share"]["directory"]
        .get<std::string>();
  }
  json Device(const std::string& name) {
    const json reply = Call(folder_.path(), {{"op", "list_shares"}});
    for (const json& share : reply.value("shares", json::array())) {
      if (share["name"] == name) return share["devices"][0];
    }
    return json::object();
  }
  // What is shown of a share is what a share can be, whatever its members say.
  void ExpectSane(const std::string& name) {
    const json device = Device(name);
    EXPECT_LE(device["used_bytes"].get<uint64_t>(), kGiB) << device;
    EXPECT_LE(device["overhead_bytes"].get<uint64_t>(), kGiB) << device;
    EXPECT_LE(device["granted_bytes"].get<uint64_t>(), kGiB) << device;
    EXPECT_LE(device["backlog_ns"].get<uint64_t>(), uint64_t{10'000'000'000}) << device;
    for (const char* part :
         {"achieved", "busy", "waiting_part", "at_limit_part", "undrained_part", "entitled"}) {
      EXPECT_GE(device[part].get<double>(), 0) << part << device;
      EXPECT_LE(device[part].get<double>(), 1.1) << part << device;
    }
  }
  // It wants the device, gets it, and gives it back.
  bool HonestSlice() {
    ++honest_->usage().waiting;
    honest_->Send(MessageType::kLeaseWanted);
    const bool open = Eventually([&] { return (honest_->lease() & shm::kLeaseOpen) != 0; }, 10'000);
    --honest_->usage().waiting;
    ++honest_->usage().launches;
    honest_->usage().drained_sequence = honest_->sequence();
    honest_->Send(MessageType::kLeaseDrained);
    return open;
  }

  testing::TemporaryFolder folder_;
  testing::DevicePage* page_ = testing::DevicePage::Make();
  testing::AgentProcess agent_{folder_.path(), page_};
  testing::StandIn liars_process_;
  std::unique_ptr<TestMember> honest_;
  std::unique_ptr<TestMember> liar_;
};

TEST_F(LiesTest, EveryWordAtEveryExtremeHarmsNoOtherShare) {
  auto* words = reinterpret_cast<std::atomic<uint64_t>*>(&liar_->usage());
  std::mt19937_64 random(1);
  for (size_t word = 0; word < sizeof(shm::DeviceUsage) / 8; ++word) {
    for (const uint64_t value :
         {~uint64_t{0}, uint64_t{1} << 63, uint64_t{random()}, uint64_t{1}, uint64_t{0}}) {
      words[word] = value;
      liar_->Send(MessageType::kLeaseWanted);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_TRUE(HonestSlice()) << "word " << word;
    EXPECT_TRUE(honest_->Charge(kGiB)) << "word " << word;
    honest_->Uncharge(kGiB);
    ExpectSane("liar");
    ExpectSane("honest");
  }
}

TEST_F(LiesTest, AllWordsAtRandomMomentsHarmNoOtherShare) {
  auto* words = reinterpret_cast<std::atomic<uint64_t>*>(&liar_->usage());
  std::atomic<bool> over = false;
  std::thread lies([&] {
    for (std::mt19937_64 random(2); !over;) {
      const size_t word = random() % (sizeof(shm::DeviceUsage) / 8);
      words[word] = random() % 3 == 0 ? 0 : random() % 2 == 0 ? ~uint64_t{0} : random();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    }
  });
  for (int turn = 0; turn < 200; ++turn) {
    EXPECT_TRUE(HonestSlice()) << turn;
    EXPECT_TRUE(honest_->Charge(kGiB)) << turn;
    honest_->Uncharge(kGiB);
  }
  over = true;
  lies.join();
  ExpectSane("liar");
  ExpectSane("honest");
}

// A counter of its own that jumps fills neither the log nor the ring of events.
TEST_F(LiesTest, CountersThatJumpAreReportedAFewTimesASecond) {
  const auto last = [&] {
    return Call(folder_.path(), {{"op", "events"}})["last"].get<uint64_t>();
  };
  const uint64_t before = last();
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 300; ++i) {
    liar_->usage().refusals = i % 2 == 0 ? ~uint64_t{0} : 0;
    liar_->usage().ungoverned_functions = i % 2 == 0 ? 0 : ~uint64_t{0};
    liar_->usage().persistent_ns = i % 2 == 0 ? ~uint64_t{0} : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begun);
  // Four kinds of them (a kernel's begin and end are two), each at once and then once a second.
  EXPECT_LE(last() - before, 4 * (2 + static_cast<uint64_t>(seconds.count())));
  EXPECT_EQ(Device("liar")["refusals"].get<uint64_t>(), ~uint64_t{0}) << "it stays at its most";
  EXPECT_EQ(Device("honest")["refusals"].get<uint64_t>(), 0u);
}

// It runs kernels and says nothing of them: not waiting, nothing launched, nothing unfinished.
TEST_F(LiesTest, WorkThatIsNotReportedIsChargedByTheDevicesOwnFigures) {
  page_->EntryOf(liars_process_.pid())->percent = 80;
  page_->time_figures = true;
  EXPECT_TRUE(Eventually(
      [&] { return Device("liar").value("device_time_ns", uint64_t{0}) > 1'000'000'000; }, 30'000))
      << Device("liar");
  EXPECT_LT(Device("honest").value("device_time_ns", uint64_t{0}), 100'000'000u);
}

}  // namespace
}  // namespace prorata::agent
