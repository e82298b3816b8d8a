// Shares of several devices.

#include <gtest/gtest.h>

#include "agent/testing/testing_agent.h"

namespace prorata::agent {
namespace {

using nlohmann::json;
using testing::AgentProcess;
using testing::Call;
using testing::DevicePage;
using testing::Eventually;
using testing::kWelcome;
using testing::TestMember;
using wire::MessageType;

class AgentDevicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    agent_.SetDevices(3);
    ASSERT_EQ(agent_.Start(), "ready");
  }

  json Ask(json share) {
    share["name"] = "a";
    return Call(dir(), {{"op", "create_share"}, {"share", std::move(share)}});
  }
  std::string CodeOf(const json& reply) {
    return reply.contains("error") ? reply["error"]["code"].get<std::string>() : "";
  }
  json Change(json change) {
    return Call(dir(), {{"op", "update_share"}, {"name", "a"}, {"change", std::move(change)}});
  }
  // Of the share: [[index, memory limit], ...].
  json Limits() {
    json limits = json::array();
    const json shares = Call(dir(), {{"op", "list_shares"}}).value("shares", json::array());
    for (const json& device : shares.at(0)["devices"]) {
      limits.push_back({device["index"], device["memory_limit_bytes"]});
    }
    return limits;
  }
  json Promised() {
    json promised = json::array();
    const json reply = Call(dir(), {{"op", "list_devices"}});
    for (const json& device : reply.value("devices", json::array())) {
      promised.push_back(device["promised_bytes"]);
    }
    return promised;
  }
  const std::string& dir() const { return folder_.path(); }

  testing::TemporaryFolder folder_;
  AgentProcess agent_{folder_.path(), DevicePage::Make()};
};

TEST_F(AgentDevicesTest, TheLimitsFileHasThemInTheOrderAskedFor) {
  const json made =
      Ask({{"gpu", {"2", testing::kUuid}},
           {"memory_bytes", kGiB},
           {"compute_limit", 0.5},
           {"on", json::array({{{"gpu", "0"}, {"memory_bytes", 2 * kGiB}, {"weight", 7}}})}});
  ASSERT_TRUE(made.contains("share")) << made;
  EXPECT_EQ(Limits(), (json{{2, kGiB}, {0, 2 * kGiB}}));
  EXPECT_EQ(Promised(), (json{2 * kGiB, 0, kGiB}));

  TestMember member(made["share"]["directory"].get<std::string>());
  ASSERT_EQ(member.Join(), kWelcome);
  const shm::LimitsFile& limits = member.limits();
  ASSERT_EQ(limits.header.device_count, 2u);
  EXPECT_EQ(limits.devices[0].uuid[4], '3');
  EXPECT_STREQ(limits.devices[1].uuid, testing::kUuid);
  EXPECT_EQ(limits.devices[0].memory_limit_bytes, kGiB);
  EXPECT_EQ(limits.devices[1].memory_limit_bytes, 2 * kGiB);
  EXPECT_EQ(limits.devices[0].compute_weight, 100u);
  EXPECT_EQ(limits.devices[1].compute_weight, 7u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(limits.devices[i].compute_limit_ppm, 500'000u);
    const auto device = static_cast<uint32_t>(i);
    ++member.usage(device).waiting;
    member.Send(MessageType::kLeaseWanted, device);
    EXPECT_TRUE(Eventually([&] { return (limits.devices[i].lease & shm::kLeaseOpen) != 0; }))
        << "alone on device " << i;
  }
}

TEST_F(AgentDevicesTest, AGrantOnOneDeviceTakesNothingOfTheOther) {
  const json made = Ask({{"gpus", 2}, {"memory_bytes", kGiB}});
  ASSERT_TRUE(made.contains("share")) << made;
  TestMember member(made["share"]["directory"].get<std::string>());
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(member.Charge(kGiB));
  EXPECT_FALSE(member.Charge(1));
  const wire::GrantRequest request{99, 1, 0, kGiB};
  testing::SendFrame(member.socket(), static_cast<uint16_t>(MessageType::kGrantRequest), &request,
                     sizeof request);
  const auto answer = member.Await(MessageType::kGrantReply, 30'000);
  ASSERT_TRUE(answer.has_value());
  wire::GrantReply reply;
  std::memcpy(&reply, answer->body.data(), sizeof reply);
  EXPECT_EQ(reply.result, wire::GrantResult::kGranted);
  EXPECT_GE(member.limits().grants[member.slot()].bytes[1], kGiB);
}

TEST_F(AgentDevicesTest, AnUpdateIsForAllDevicesOrNone) {
  ASSERT_TRUE(Ask({{"gpu", {"0", "1"}}, {"memory_bytes", kGiB}}).contains("share"));
  EXPECT_TRUE(Change({{"on", json::array({{{"gpu", "1"}, {"memory_bytes", 3 * kGiB}}})}})
                  .contains("share"));
  EXPECT_EQ(Limits(), (json{{0, kGiB}, {1, 3 * kGiB}}));
  EXPECT_EQ(CodeOf(Change({{"memory_bytes", 2 * kGiB},
                           {"on", json::array({{{"gpu", "1"}, {"memory_bytes", 9 * kGiB}}})}})),
            "memory_exceeded");
  EXPECT_EQ(CodeOf(Change({{"on", json::array({{{"gpu", "2"}, {"weight", 5}}})}})),
            "gpu_not_in_share");
  EXPECT_EQ(Limits(), (json{{0, kGiB}, {1, 3 * kGiB}}));
  EXPECT_TRUE(Change({{"memory_bytes", 2 * kGiB}}).contains("share"));
  EXPECT_EQ(Limits(), (json{{0, 2 * kGiB}, {1, 2 * kGiB}}));
  EXPECT_EQ(Promised(), (json{2 * kGiB, 2 * kGiB, 0}));
}

TEST_F(AgentDevicesTest, TheNextAgentHasAllOfThem) {
  const json made = Ask({{"gpu", {"2", "0"}},
                         {"memory_bytes", kGiB},
                         {"on", json::array({{{"gpu", "0"}, {"memory_bytes", 2 * kGiB}}})}});
  ASSERT_TRUE(made.contains("share")) << made;
  TestMember member(made["share"]["directory"].get<std::string>());
  ASSERT_EQ(member.Join(), kWelcome);
  ASSERT_TRUE(member.Charge(100 * kMiB));
  agent_.Kill();
  ASSERT_EQ(agent_.Start(), "ready");
  EXPECT_EQ(Limits(), (json{{2, kGiB}, {0, 2 * kGiB}}));
  EXPECT_EQ(Promised(), (json{2 * kGiB, 0, kGiB}));
  ASSERT_TRUE(member.Rejoin());
  EXPECT_FALSE(member.Charge(kGiB));
  EXPECT_TRUE(member.Charge(kGiB - 100 * kMiB));
}

// Two shares that want one device; the other device of the one is its own all the while.
TEST_F(AgentDevicesTest, TheLeasesOfItsDevicesKnowNothingOfEachOther) {
  // After an outage all leases are given anew, and a busy machine keeps the agent's loop away for
  // as long: with a clock so slow it may take two seconds.
  constexpr uint32_t kDilation = 20;
  agent_.Kill();
  ASSERT_EQ(agent_.Start(/*exit_when_idle=*/false, kDilation), "ready");
  // With requests: without any all shares hold their leases.
  const json both = Ask({{"gpu", {"0", "1"}}, {"memory_bytes", kGiB}, {"compute_request", 0.3}});
  ASSERT_TRUE(both.contains("share")) << both;
  const json one = Call(
      dir(),
      {{"op", "create_share"},
       {"share", {{"name", "b"}, {"gpu", "1"}, {"memory_bytes", kGiB}, {"compute_request", 0.3}}}});
  ASSERT_TRUE(one.contains("share")) << one;
  TestMember a(both["share"]["directory"].get<std::string>());
  ASSERT_EQ(a.Join(), kWelcome);
  auto lease = [&a](uint32_t device) { return a.limits().devices[device].lease.load(); };
  ASSERT_TRUE(Eventually([&] { return (lease(0) & shm::kLeaseOpen) != 0; }, 30'000));
  const uint32_t own = lease(0);
  ++a.usage(1).waiting;
  a.Send(MessageType::kLeaseWanted, 1);
  ASSERT_TRUE(Eventually([&] { return (lease(1) & shm::kLeaseOpen) != 0; }, 30'000));
  --a.usage(1).waiting;
  ++a.usage(1).launches;
  a.usage(1).backlog_ns = 10'000'000'000;

  testing::StandIn other;
  TestMember b(one["share"]["directory"].get<std::string>(), &other);
  ASSERT_EQ(b.Join(), kWelcome);
  ++b.usage().waiting;
  b.Send(MessageType::kLeaseWanted);
  EXPECT_TRUE(Eventually([&] { return (lease(1) & shm::kLeaseOpen) == 0; }, 30'000));
  a.usage(1).backlog_ns = 0;
  a.usage(1).drained_sequence = lease(1) >> shm::kLeaseSequenceShift;
  a.Send(MessageType::kLeaseDrained, 1);
  EXPECT_TRUE(Eventually([&] { return (b.lease() & shm::kLeaseOpen) != 0; }, 30'000));
  EXPECT_EQ(lease(0), own);
}

TEST_F(AgentDevicesTest, ARefusalLeavesNothingPromisedAnywhere) {
  EXPECT_EQ(CodeOf(Ask({{"gpu", {"0", "1"}},
                        {"memory_bytes", kGiB},
                        {"on", json::array({{{"gpu", "1"}, {"memory_bytes", 9 * kGiB}}})}})),
            "memory_exceeded");
  EXPECT_EQ(CodeOf(Ask({{"gpu", {"0", "0"}}})), "gpu_twice");
  EXPECT_EQ(CodeOf(Ask({{"gpus", 4}})), "gpu_count");
  EXPECT_EQ(Promised(), (json{0, 0, 0}));
}

}  // namespace
}  // namespace prorata::agent
