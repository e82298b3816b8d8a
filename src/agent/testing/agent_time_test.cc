// The device time of shares and of others, as the agent shows it.

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "agent/testing/testing_agent.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

using nlohmann::json;
using testing::Call;
using testing::Eventually;
using testing::kWelcome;
using testing::TestMember;

constexpr double kNear = 0.011;  // a percent is the least that NVML tells

class AgentTimeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(agent_.Start(), "ready");
    const json reply = Call(folder_.path(), {{"op", "create_share"}, {"share", {{"name", "a"}}}});
    member_ = std::make_unique<TestMember>(reply["share"]["directory"].get<std::string>());
    ASSERT_EQ(member_->Join(), kWelcome);
  }
  // -1: it is not there.
  double Others() {
    const json reply = Call(folder_.path(), {{"op", "list_devices"}});
    return reply.contains("devices") ? reply["devices"][0].value("others", -1.0) : -2;
  }
  json Share() {
    const json reply = Call(folder_.path(), {{"op", "list_shares"}});
    return reply.contains("shares") ? reply["shares"][0]["devices"][0] : json::object();
  }
  bool Comes(double others, double busy) {
    return Eventually([&] {
      return std::abs(Others() - others) < kNear &&
             std::abs(Share().value("busy", -1.0) - busy) < kNear;
    });
  }

  // What a member measures of its kernels that run in three tenths of the time.
  void MeasureThreeTenths() {
    measures_ = std::jthread([this](const std::stop_token& stopped) {
      const RealClock clock;
      const int64_t begin_ns = clock.NowNs();
      while (!stopped.stop_requested()) {
        const auto passed_ns = static_cast<uint64_t>(clock.NowNs() - begin_ns);
        member_->usage().device_time_ns = passed_ns * 3 / 10;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
  }

  testing::TemporaryFolder folder_;
  testing::DevicePage* page_ = testing::DevicePage::Make();
  testing::AgentProcess agent_{folder_.path(), page_};
  std::unique_ptr<TestMember> member_;
  std::jthread measures_;
};

TEST_F(AgentTimeTest, AMemberIsItsShareAndAnotherProgramIsOthers) {
  testing::StandIn outside;
  page_->EntryOf(::getpid())->percent = 30;
  page_->EntryOf(outside.pid())->percent = 45;
  page_->time_figures = true;
  MeasureThreeTenths();
  // Without figures at first, the agent asks again only after a while.
  EXPECT_TRUE(Comes(0.45, 0.30)) << Others() << " " << Share();
  const uint64_t busy_ns = Share().value("busy_time_ns", uint64_t{0});
  EXPECT_TRUE(Eventually([&] { return Share().value("busy_time_ns", uint64_t{0}) > busy_ns; }));

  page_->hangs = true;
  page_->EntryOf(outside.pid())->percent = 10;
  EXPECT_TRUE(Comes(-1, 0.30)) << "while NVML does not answer";
  page_->hangs = false;
  EXPECT_TRUE(Comes(0.10, 0.30)) << Others() << " " << Share();

  page_->time_figures = false;
  EXPECT_TRUE(Comes(-1, 0.30)) << Others() << " " << Share();
}

TEST_F(AgentTimeTest, WithoutFiguresAShareShowsWhatItsMembersMeasured) {
  uint64_t measured_ns = 0;
  EXPECT_TRUE(Eventually([&] {
    member_->usage().device_time_ns = measured_ns += 10'000'000;
    return Share().value("busy", 0.0) > 0.05;
  }));
  EXPECT_LE(Share().value("busy_time_ns", uint64_t{0}), measured_ns);
  EXPECT_EQ(Others(), -1);
}

}  // namespace
}  // namespace prorata::agent
