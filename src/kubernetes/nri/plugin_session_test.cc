#include "kubernetes/nri/plugin_session.h"

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <random>

#include "kubernetes/nri/nri.pb.h"
#include "kubernetes/nri/ttrpc.pb.h"

namespace prorata::kubernetes {
namespace {

namespace nri = ::nri::pkg::api::v1alpha1;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Recorded final : RuntimeEvents {
  std::vector<std::string> events;
  std::vector<RuntimePod> pods;
  std::vector<RuntimeContainer> containers;
  Result<std::vector<std::string>> devices = std::vector<std::string>();
  milliseconds given{0};

  void Synchronized(const std::vector<RuntimePod>& all,
                    const std::vector<RuntimeContainer>& their) override {
    events.push_back("synchronized");
    pods = all;
    containers = their;
  }
  Result<std::vector<std::string>> CreateContainer(const RuntimePod& pod,
                                                   const RuntimeContainer& container,
                                                   steady_clock::time_point deadline) override {
    given = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    events.push_back("create " + container.name);
    pods = {pod};
    containers = {container};
    return devices;
  }
  void PodRuns(const RuntimePod& pod) override { events.push_back("runs " + pod.uid); }
  void PodEnded(const RuntimePod& pod) override { events.push_back("ended " + pod.uid); }
  void ContainerStopped(const RuntimePod& pod, const RuntimeContainer& container) override {
    events.push_back("stopped " + pod.uid + " " + container.id);
  }
  void Disconnected() override { events.push_back("disconnected"); }
};

class PluginSessionTest : public testing::Test {
 protected:
  static std::string RequestBytes(uint32_t stream, const std::string& method,
                                  const std::string& payload,
                                  const std::string& service = "nri.pkg.api.v1alpha1.Plugin") {
    ttrpc::Request request;
    request.set_service(service);
    request.set_method(method);
    request.set_payload(payload);
    return EncodeFrames(
        {kPluginConnection, stream, TtrpcType::kRequest, 0, request.SerializeAsString()});
  }

  // As the runtime: the answer to one request.
  ttrpc::Response Ask(const std::string& method, const google::protobuf::MessageLite& payload) {
    stream_ += 2;
    const auto out = session_.Take(RequestBytes(stream_, method, payload.SerializeAsString()));
    EXPECT_TRUE(out) << out.error().message;
    const auto messages = FrameDecoder().Take(*out);
    EXPECT_EQ(messages->size(), 1u);
    const TtrpcMessage& message = messages->front();
    EXPECT_EQ(message.connection, kPluginConnection);
    EXPECT_EQ(message.stream, stream_);
    EXPECT_EQ(message.type, TtrpcType::kResponse);
    ttrpc::Response response;
    EXPECT_TRUE(response.ParseFromString(message.data));
    return response;
  }

  static nri::CreateContainerRequest Creation() {
    nri::CreateContainerRequest request;
    nri::PodSandbox& pod = *request.mutable_pod();
    pod.set_id("sandbox");
    pod.set_uid("uid");
    pod.set_namespace_("team");
    pod.set_name("train");
    (*pod.mutable_annotations())["gpu-fraction"] = "0.5";
    nri::Container& container = *request.mutable_container();
    container.set_name("main");
    container.add_env("A=\xff");
    container.add_mounts()->set_destination("/run/prorata/share");
    container.add_cdi_devices()->set_name("vendor.com/class=x");
    return request;
  }

  Recorded events_;
  PluginSession session_{events_, {"prorata", "90"}};
  uint32_t stream_ = 1;
};

TEST_F(PluginSessionTest, ItRegistersByNameAndIndex) {
  const auto messages = FrameDecoder().Take(session_.Begin());
  ASSERT_EQ(messages->size(), 1u);
  EXPECT_EQ(messages->front().connection, kRuntimeConnection);
  EXPECT_EQ(messages->front().stream, 1u);
  ttrpc::Request request;
  ASSERT_TRUE(request.ParseFromString(messages->front().data));
  EXPECT_EQ(request.service() + "/" + request.method(),
            "nri.pkg.api.v1alpha1.Runtime/RegisterPlugin");
  nri::RegisterPluginRequest plugin;
  ASSERT_TRUE(plugin.ParseFromString(request.payload()));
  EXPECT_EQ(plugin.plugin_idx() + "-" + plugin.plugin_name(), "90-prorata");
}

TEST_F(PluginSessionTest, ItAsksForTheEventsThatItNeeds) {
  nri::ConfigureResponse configured;
  ASSERT_TRUE(configured.ParseFromString(Ask("Configure", nri::ConfigureRequest()).payload()));
  // Run, stop and remove a pod; create and stop a container.
  EXPECT_EQ(configured.events(), 0b10'0000'1111);
  // Who only looks is asked about no container: the runtime would wait for it.
  PluginSession looks(events_, {"prorata-look", "91", true});
  const auto out = looks.Take(RequestBytes(1, "Configure", ""));
  ttrpc::Response response;
  ASSERT_TRUE(response.ParseFromString(FrameDecoder().Take(*out)->front().data));
  ASSERT_TRUE(configured.ParseFromString(response.payload()));
  EXPECT_EQ(configured.events(), 1 << 12);
}

TEST_F(PluginSessionTest, AContainerGetsDevices) {
  events_.devices = std::vector<std::string>{"prorata.dev/share=a"};
  nri::CreateContainerResponse response;
  ASSERT_TRUE(response.ParseFromString(Ask("CreateContainer", Creation()).payload()));
  ASSERT_EQ(response.adjust().cdi_devices_size(), 1);
  EXPECT_EQ(response.adjust().cdi_devices(0).name(), "prorata.dev/share=a");
  const RuntimePod& pod = events_.pods.front();
  EXPECT_EQ(pod.name_space + "/" + pod.name + " " + pod.uid + " " + pod.id,
            "team/train uid sandbox");
  EXPECT_EQ(pod.annotations.at("gpu-fraction"), "0.5");
  const RuntimeContainer& container = events_.containers.front();
  EXPECT_EQ(container.environment, std::vector<std::string>{"A=\xff"});
  EXPECT_EQ(container.mount_targets, std::vector<std::string>{"/run/prorata/share"});
  EXPECT_EQ(container.cdi_devices, std::vector<std::string>{"vendor.com/class=x"});
}

// There are two of it while it is upgraded, and the runtime names no devices of one to the other.
TEST_F(PluginSessionTest, WhatAnEarlierPluginAddedIsSeen) {
  events_.devices = std::vector<std::string>{"prorata.dev/share=a"};
  nri::CreateContainerResponse first;
  ASSERT_TRUE(first.ParseFromString(Ask("CreateContainer", Creation()).payload()));
  nri::CreateContainerRequest again = Creation();
  again.mutable_container()->mutable_annotations()->insert(first.adjust().annotations().begin(),
                                                           first.adjust().annotations().end());
  Ask("CreateContainer", again);
  EXPECT_EQ(events_.containers.front().cdi_devices,
            (std::vector<std::string>{"vendor.com/class=x", "prorata.dev/share=a"}));
}

TEST_F(PluginSessionTest, NothingForAContainerIsAnEmptyAnswer) {
  EXPECT_EQ(Ask("CreateContainer", Creation()).ByteSizeLong(), 0u);
}

TEST_F(PluginSessionTest, ARefusalIsTheStatus) {
  events_.devices = Fail("no_agent", "no agent");
  const ttrpc::Response response = Ask("CreateContainer", Creation());
  EXPECT_EQ(response.status().code(), 2);
  EXPECT_EQ(response.status().message(), "no agent");
  EXPECT_TRUE(response.payload().empty());
}

// Once the runtime's time is over it makes the container without the plugin.
TEST_F(PluginSessionTest, AContainersDeadlineIsWellBeforeTheRuntimes) {
  nri::ConfigureRequest configure;
  configure.set_request_timeout(2'000);
  Ask("Configure", configure);
  Ask("CreateContainer", Creation());
  EXPECT_LE(events_.given.count(), 1'000);
  EXPECT_GT(events_.given.count(), 0);
  configure.set_request_timeout(60'000);
  Ask("Configure", configure);
  Ask("CreateContainer", Creation());
  EXPECT_GT(events_.given.count(), 20'000);
}

TEST_F(PluginSessionTest, ASynchronizationInSeveralMessagesIsOne) {
  nri::SynchronizeRequest some;
  some.set_more(true);
  some.add_pods()->set_uid("a");
  some.mutable_pods(0)->set_pid(12);
  some.add_containers()->set_name("main");
  nri::SynchronizeResponse response;
  ASSERT_TRUE(response.ParseFromString(Ask("Synchronize", some).payload()));
  EXPECT_TRUE(response.more());
  EXPECT_TRUE(events_.events.empty());
  EXPECT_FALSE(session_.synchronized());
  nri::SynchronizeRequest last;
  last.add_pods()->set_uid("b");
  last.add_containers()->set_state(nri::CONTAINER_STOPPED);
  ASSERT_TRUE(response.ParseFromString(Ask("Synchronize", last).payload()));
  EXPECT_FALSE(response.more());
  EXPECT_TRUE(session_.synchronized());
  ASSERT_EQ(events_.pods.size(), 2u);
  EXPECT_EQ(events_.pods[0].uid + events_.pods[1].uid, "ab");
  EXPECT_TRUE(events_.pods[0].runs && !events_.pods[1].runs);
  EXPECT_TRUE(!events_.containers[0].stopped && events_.containers[1].stopped);
}

TEST_F(PluginSessionTest, StatesOfPods) {
  nri::StateChangeEvent event;
  event.mutable_pod()->set_uid("u");
  for (const nri::Event kind : {nri::RUN_POD_SANDBOX, nri::CREATE_CONTAINER, nri::STOP_POD_SANDBOX,
                                nri::REMOVE_POD_SANDBOX}) {
    event.set_event(kind);
    EXPECT_EQ(Ask("StateChange", event).status().code(), 0);
  }
  EXPECT_EQ(events_.events, (std::vector<std::string>{"runs u", "ended u", "ended u"}));
}

TEST_F(PluginSessionTest, AContainerThatStops) {
  nri::StopContainerRequest request;
  request.mutable_pod()->set_uid("u");
  request.mutable_container()->set_id("c");
  EXPECT_EQ(Ask("StopContainer", request).status().code(), 0);
  EXPECT_EQ(events_.events, std::vector<std::string>{"stopped u c"});
}

TEST_F(PluginSessionTest, WhatItDoesNotKnowIsUnimplemented) {
  EXPECT_EQ(Ask("UpdateContainer", nri::Empty()).status().code(), 12);
  const auto out = session_.Take(RequestBytes(99, "Configure", "", "another.Service"));
  ttrpc::Response response;
  ASSERT_TRUE(response.ParseFromString(FrameDecoder().Take(*out)->front().data));
  EXPECT_EQ(response.status().code(), 12);
  EXPECT_EQ(Ask("Shutdown", nri::Empty()).status().code(), 0);
}

TEST_F(PluginSessionTest, ARequestThatCannotBeReadIsRefused) {
  const auto out = session_.Take(RequestBytes(3, "CreateContainer", "\xff\xff"));
  ttrpc::Response response;
  ASSERT_TRUE(response.ParseFromString(FrameDecoder().Take(*out)->front().data));
  EXPECT_EQ(response.status().code(), 2) << "the container is not made";
  EXPECT_TRUE(events_.events.empty());
}

TEST_F(PluginSessionTest, ARuntimeThatRefusesThePluginSaysWhy) {
  ttrpc::Response refusal;
  refusal.mutable_status()->set_code(3);
  refusal.mutable_status()->set_message("invalid plugin index");
  const auto end = session_.Take(
      EncodeFrames({kRuntimeConnection, 1, TtrpcType::kResponse, 0, refusal.SerializeAsString()}));
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code, "nri_refused");
  EXPECT_NE(end.error().message.find("'90-prorata': invalid plugin index"), std::string::npos);
}

TEST_F(PluginSessionTest, BytesAtRandom) {
  const google::protobuf::LogSilencer protobuf_is_silent;
  spdlog::set_level(spdlog::level::off);
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  nri::SynchronizeRequest all;
  all.add_pods()->set_uid("a");
  all.add_containers()->set_name("main");
  const std::vector<std::pair<std::string, std::string>> requests = {
      {"CreateContainer", Creation().SerializeAsString()},
      {"Synchronize", all.SerializeAsString()},
      {"Configure", nri::ConfigureRequest().SerializeAsString()},
      {"StateChange", nri::StateChangeEvent().SerializeAsString()}};
  for (int round = 0; round < 3'000; ++round) {
    std::string bytes;
    for (uint32_t stream = 1; stream < 9; stream += 2) {
      const auto& [method, payload] = requests[random() % requests.size()];
      bytes += RequestBytes(stream, method, payload);
    }
    for (uint32_t change = random() % 5; change > 0; --change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    PluginSession session(events_, {"prorata", "90"});
    const auto out = session.Take(bytes);
    if (!out) {
      EXPECT_EQ(out.error().code, "nri_protocol");
      continue;
    }
    EXPECT_TRUE(FrameDecoder().Take(*out)) << "what it answers can be read";
  }
  spdlog::set_level(spdlog::level::info);
}

}  // namespace
}  // namespace prorata::kubernetes
