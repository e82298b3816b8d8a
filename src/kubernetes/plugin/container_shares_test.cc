#include "kubernetes/plugin/container_shares.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "kubernetes/pods/annotations.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

const ResourceNames kPluginNames;
constexpr char kSharedPodUid[] = "a451afc9-b27b-44fb-8f40-5c786695a2c9";

// The agent: a share that is there under the same token is answered, one under another is in use.
struct TokenAgent final : Agent {
  std::map<std::string, api::ShareSpec> shares;
  int updates = 0;

  static api::ShareStatus StatusOf(const std::string& name, const api::ShareSpec& spec) {
    api::ShareStatus status;
    status.name = name;
    status.on_full = spec.on_full;
    for (const std::string& gpu : spec.gpus) {
      api::ShareDevice& on = status.devices.emplace_back();
      on.uuid = gpu;
      on.memory_limit_bytes = on.memory_request_bytes = spec.memory->bytes;
      on.compute_request = spec.compute_request;
      on.compute_limit = spec.compute_limit;
      on.weight = spec.weight;
      on.priority = spec.priority;
      on.yield_within_ns = spec.yield_within_ns;
    }
    return status;
  }
  Result<NodeState> List(Deadline) override {
    NodeState state;
    for (const auto& [name, spec] : shares) state.shares.push_back(StatusOf(name, spec));
    return state;
  }
  Result<api::ShareStatus> Create(const api::ShareSpec& spec, Deadline) override {
    const auto [found, made] = shares.try_emplace(*spec.name, spec);
    if (!made && found->second.token != spec.token) return Fail("name_in_use", "of another");
    api::ShareStatus status;
    status.name = *spec.name;
    return status;
  }
  Result<api::ShareStatus> Update(const std::string& name, const api::ShareChange& change,
                                  Deadline) override {
    api::ShareSpec& spec = shares.at(name);
    EXPECT_FALSE(change.memory || change.compute_request || !change.on.empty());
    spec.weight = change.weight.value_or(spec.weight);
    spec.compute_limit = change.compute_limit.value_or(spec.compute_limit);
    ++updates;
    return StatusOf(name, spec);
  }
  Status Remove(const std::string& name, Deadline) override {
    shares.erase(name);
    return {};
  }
};

class ContainerSharesTest : public testing::Test {
 protected:
  static Agent::Deadline Soon() { return steady_clock::now() + std::chrono::milliseconds(50); }

  static json Container(const std::string& name, const char* memory) {
    return {
        {"name", name},
        {"resources", {{"limits", {{kPluginNames.compute, "30"}, {kPluginNames.memory, memory}}}}}};
  }
  void AddPod(const std::string& uid, const std::vector<json>& containers,
              const std::vector<json>& init, const AssignedGpus& assigned,
              json annotations = json::object()) {
    annotations[kAssignedGpusAnnotation] = FormatAssignedGpus(assigned);
    pods_.Change({{"metadata",
                   {{"uid", uid},
                    {"namespace", "team"},
                    {"name", "train"},
                    {"annotations", std::move(annotations)}}},
                  {"spec", {{"containers", containers}, {"initContainers", init}}}});
    pods_.KeepOnly({uid});
  }
  void Give(const std::string& uid, const std::string& container,
            const std::vector<std::string>& units, const std::vector<std::string>& compute) {
    grants_.push_back({uid, container, kPluginNames.memory, units});
    grants_.push_back({uid, container, kPluginNames.compute, compute});
  }
  Result<std::string> Start(const std::vector<std::string>& units) {
    return shares_.Start(kPluginNames.memory, units, Soon());
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& [name, spec] : agent_.shares) names.push_back(name);
    return names;
  }

  TokenAgent agent_;
  NodePods pods_{kPluginNames};
  std::vector<DeviceGrant> grants_;
  ContainerShares shares_{agent_, pods_, [this] { return grants_; }, kPluginNames};
};

TEST_F(ContainerSharesTest, AContainerHasWhatTheExtenderWrote) {
  AddPod(kSharedPodUid, {Container("a", "3"), Container("b", "2")}, {},
         {{"a", {"GPU-1"}}, {"b", {"GPU-0"}}});
  Give(kSharedPodUid, "a", {"12", "9", "10"}, {"7"});
  Give(kSharedPodUid, "b", {"4", "5"}, {"8"});
  EXPECT_EQ(*ContainerShares::CdiDeviceOf(grants_[0].ids), "prorata.dev/share=pod-unit-9");
  EXPECT_EQ(*Start({"9", "10", "12"}), "team/train/a");
  EXPECT_EQ(*shares_.Start(kPluginNames.compute, std::vector<std::string>{"8"}, Soon()),
            "team/train/b");
  ASSERT_EQ(Names(), (std::vector<std::string>{"pod-unit-4", "pod-unit-9"}));
  const api::ShareSpec& made = agent_.shares["pod-unit-9"];
  EXPECT_EQ(made.gpus, std::vector<std::string>{"GPU-1"});
  EXPECT_EQ(made.compute_request.ppm, 300'000u);
  EXPECT_EQ(made.memory->Of(1), 3 * kMemoryUnitBytes);
  EXPECT_TRUE(Start({"9", "10", "12"})) << "the container was started again";
}

TEST_F(ContainerSharesTest, AnnotationsAreTheSharesOptions) {
  const AssignedGpus assigned = {{"a", {"GPU-1"}}, {"b", {"GPU-0"}}};
  const std::vector<json> containers = {Container("a", "3"), Container("b", "2")};
  AddPod(kSharedPodUid, containers, {}, assigned,
         {{"prorata.dev/compute-limit.a", "60"},
          {"prorata.dev/priority.a", "2"},
          {"prorata.dev/on-full.b", "wait=30s"},
          {"prorata.dev/memory.b", "90Gi"}});
  Give(kSharedPodUid, "a", {"9", "10", "12"}, {"7"});
  Give(kSharedPodUid, "b", {"4", "5"}, {"8"});
  ASSERT_TRUE(Start({"9", "10", "12"}));
  ASSERT_TRUE(Start({"4", "5"}));
  const api::ShareSpec& a = agent_.shares["pod-unit-9"];
  const api::ShareSpec& b = agent_.shares["pod-unit-4"];
  EXPECT_EQ(a.compute_limit.ppm, 600'000u);
  EXPECT_EQ(a.priority, 2);
  EXPECT_EQ(b.on_full.wait_ms, 30'000u);
  EXPECT_EQ(b.compute_limit, Fraction::One());
  EXPECT_EQ(b.memory->bytes, 2 * kMemoryUnitBytes) << "its size is what its limits say";

  EXPECT_EQ(shares_.ApplyWishes(Soon())->size(), 0u);
  AddPod(kSharedPodUid, containers, {}, assigned,
         {{"prorata.dev/weight.a", "300"},
          {"prorata.dev/on-full.b", "wait=30s"},
          {"prorata.dev/priority.a", "2"}});
  EXPECT_EQ(*shares_.ApplyWishes(Soon()),
            std::vector<std::string>{"pod-unit-9: compute limit 60% to 100%, weight 100 to 300"});
  EXPECT_EQ(agent_.updates, 1);
  // One that is wrong changes nothing of the pod's.
  AddPod(kSharedPodUid, containers, {}, assigned, {{"prorata.dev/weight.a", "0"}});
  EXPECT_EQ(shares_.ApplyWishes(Soon())->size(), 0u);
  EXPECT_EQ(agent_.shares["pod-unit-9"].weight, 300u);
  agent_.shares.clear();
  EXPECT_EQ(Start({"4", "5"}).error().code, "bad_annotation");
}

TEST_F(ContainerSharesTest, AnAnnotationMayMeanOnlyOneContainer) {
  AddPod(kSharedPodUid, {Container("a", "3"), Container("b", "2")}, {},
         {{"a", {"GPU-1"}}, {"b", {"GPU-0"}}}, {{"prorata.dev/weight", "300"}});
  Give(kSharedPodUid, "a", {"9", "10", "12"}, {"7"});
  EXPECT_NE(Start({"9", "10", "12"})
                .error()
                .message.find("the pod has several containers with parts of GPUs (a, b)"),
            std::string::npos);
}

TEST_F(ContainerSharesTest, AShareIsSomebodys) {
  AddPod(kSharedPodUid, {Container("a", "3"), Container("b", "2")}, {},
         {{"a", {"GPU-1"}}, {"b", {"GPU-0"}}});
  Give(kSharedPodUid, "a", {"12", "9", "10"}, {"7"});
  Give(kSharedPodUid, "b", {"4", "5"}, {"8"});
  Give("gone", "c", {"20"}, {"9"});
  const auto holder = shares_.HolderOf("pod-unit-9");
  ASSERT_TRUE(holder);
  EXPECT_EQ(holder->pod.name_space + "/" + holder->pod.name + "/" + holder->container,
            "team/train/a");
  EXPECT_EQ(holder->pod.uid, kSharedPodUid);
  EXPECT_EQ(shares_.HolderOf("pod-unit-4")->container, "b");
  EXPECT_FALSE(shares_.HolderOf("pod-unit-12")) << "it is named by its least unit";
  EXPECT_FALSE(shares_.HolderOf("pod-unit-20")) << "the pod is not there any more";
  EXPECT_FALSE(shares_.HolderOf("mine"));
}

TEST_F(ContainerSharesTest, NothingIsGuessed) {
  AddPod(kSharedPodUid, {Container("a", "2")}, {}, {{"a", {"GPU-1", "GPU-2"}}});
  Give(kSharedPodUid, "a", {"1", "2"}, {"7"});
  const auto code = [&](const std::vector<std::string>& units) {
    return Start(units).error().code;
  };
  EXPECT_EQ(code({"1"}), "unknown_device");
  EXPECT_EQ(code({"1", "2"}), "bad_annotation") << "two GPUs for a part of one";
  grants_[0].pod_uid = "another";
  EXPECT_EQ(code({"1", "2"}), "unknown_pod");
  pods_.Change({{"metadata", {{"uid", "another"}}},
                {"spec", {{"containers", std::vector{Container("a", "2")}}}}});
  EXPECT_EQ(code({"1", "2"}), "not_assigned");
  EXPECT_TRUE(agent_.shares.empty());
  for (const std::vector<std::string>& ids : {std::vector<std::string>{}, {"x"}, {"1", "-1"}}) {
    EXPECT_FALSE(ContainerShares::CdiDeviceOf(ids));
  }
}

TEST_F(ContainerSharesTest, UnitsThatTheKubeletGaveToAnotherPod) {
  AddPod(kSharedPodUid, {Container("a", "1")}, {}, {{"a", {"GPU-0"}}});
  Give(kSharedPodUid, "a", {"1"}, {"7"});
  ASSERT_TRUE(Start({"1"}));
  grants_.clear();
  AddPod("later", {Container("a", "1")}, {}, {{"a", {"GPU-1"}}});
  Give("later", "a", {"1"}, {"7"});
  ASSERT_TRUE(Start({"1"}));
  EXPECT_EQ(agent_.shares["pod-unit-1"].gpus, std::vector<std::string>{"GPU-1"});
}

// The kubelet gives what an init container had to those after it: b's share has the name that
// first's had.
TEST_F(ContainerSharesTest, WhatAnInitContainerHadIsTheNextOnes) {
  AddPod(kSharedPodUid, {Container("a", "2"), Container("b", "3")}, {Container("first", "3")},
         {{"a", {"GPU-0"}}, {"b", {"GPU-0"}}, {"first", {"GPU-0"}}});
  Give(kSharedPodUid, "first", {"1", "2", "3"}, {"7"});
  Give(kSharedPodUid, "a", {"2", "3"}, {"7"});
  Give(kSharedPodUid, "b", {"1", "4", "5"}, {"8"});
  ASSERT_EQ(*Start({"1", "2", "3"}), "team/train/first");
  ASSERT_EQ(*Start({"2", "3"}), "team/train/a");
  EXPECT_EQ(Names(), std::vector<std::string>{"pod-unit-2"}) << "first's is over";
  ASSERT_EQ(*Start({"1", "4", "5"}), "team/train/b");
  ASSERT_TRUE(Start({"2", "3"})) << "a again";
  EXPECT_EQ(Names(), (std::vector<std::string>{"pod-unit-1", "pod-unit-2"})) << "b's runs on";
  ASSERT_TRUE(Start({"1", "2", "3"})) << "the pod begins anew";
  EXPECT_EQ(Names(), std::vector<std::string>{"pod-unit-1"});
}

TEST_F(ContainerSharesTest, AnInitContainerWithTheSameUnitsHasTheSameShare) {
  AddPod(kSharedPodUid, {Container("a", "2")}, {Container("first", "2")},
         {{"a", {"GPU-0"}}, {"first", {"GPU-0"}}});
  Give(kSharedPodUid, "first", {"1", "2"}, {"7"});
  Give(kSharedPodUid, "a", {"1", "2"}, {"7"});
  EXPECT_EQ(*Start({"1", "2"}), "team/train/a");
  EXPECT_EQ(*Start({"1", "2"}), "team/train/a");
}

TEST_F(ContainerSharesTest, SharesOfPodsThatAreGone) {
  agent_.shares["pod-unit-5"] = agent_.shares["claim-x"] = agent_.shares["pod-unit-x"] = {};
  AddPod(kSharedPodUid, {Container("a", "1")}, {}, {{"a", {"GPU-0"}}});
  Give(kSharedPodUid, "a", {"1"}, {"7"});
  ASSERT_TRUE(Start({"1"}));
  EXPECT_EQ(*shares_.RemoveStale(Soon()), std::vector<std::string>{"pod-unit-5"});
  pods_.Change({{"metadata", {{"uid", kSharedPodUid}}}, {"status", {{"phase", "Succeeded"}}}});
  EXPECT_EQ(*shares_.RemoveStale(Soon()), std::vector<std::string>{"pod-unit-1"});
  EXPECT_EQ(Names(), (std::vector<std::string>{"claim-x", "pod-unit-x"}));
}

TEST_F(ContainerSharesTest, NothingIsStaleBeforeThePodsAreKnown) {
  agent_.shares["pod-unit-5"] = {};
  EXPECT_TRUE(shares_.RemoveStale(Soon())->empty());
  pods_.KeepOnly({});
  EXPECT_EQ(shares_.RemoveStale(Soon())->size(), 1u);
}

TEST(KubeletCheckpointTest, Layout) {
  const auto grants = ParseKubeletCheckpoint(R"({"Data": {"PodDeviceEntries": [
      {"PodUID": "u", "ContainerName": "c", "ResourceName": "r",
       "DeviceIDs": {"-1": ["3", "1"], "0": ["2"]}, "AllocResp": "QUJD"}],
      "RegisteredDevices": {"r": ["1"]}}, "Checksum": 123})");
  ASSERT_TRUE(grants) << grants.error().message;
  ASSERT_EQ(grants->size(), 1u);
  EXPECT_EQ(grants->front().pod_uid + grants->front().container + grants->front().resource, "ucr");
  EXPECT_EQ(grants->front().ids, (std::vector<std::string>{"3", "1", "2"}));
  EXPECT_TRUE(ParseKubeletCheckpoint(R"({"Data": {"PodDeviceEntries": null}})")->empty());
  for (const char* text : {"", "{}", R"({"Data": {"PodDeviceEntries": [{"PodUID": "u"}]}})"}) {
    EXPECT_EQ(ParseKubeletCheckpoint(text).error().code, "checkpoint") << text;
  }
  EXPECT_EQ(ReadKubeletCheckpoint("/nowhere/checkpoint").error().code, "checkpoint");
}

}  // namespace
}  // namespace prorata::kubernetes
