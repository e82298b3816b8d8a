#include "kubernetes/resize/resizes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/bytes.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr char kResizedUid[] = "a451afc9-b27b-44fb-8f40-5c786695a2c9";
constexpr char kComingUid[] = "b451afc9-b27b-44fb-8f40-5c786695a2c9";

json AllocatedJson(const std::string& uid, const std::string& name, const std::string& memory) {
  const json result = {{"driver", "gpu.prorata.dev"},
                       {"pool", "n1"},
                       {"device", "gpu-0"},
                       {"request", "gpu"},
                       {"consumedCapacity", {{"memory", memory}, {"compute", "30"}}}};
  return {{"metadata", {{"uid", uid}, {"name", name}, {"namespace", "team"}}},
          {"status", {{"allocation", {{"devices", {{"results", {result}}}}}}}}};
}

struct ClaimsOfCluster final : ClaimApi {
  std::map<std::string, json> allocated;

  Result<json> Get(const ClaimReference&) override { return Fail("unused", ""); }
  Result<std::map<std::string, json>> ListAllocated(const std::string&) override {
    return allocated;
  }
};

// One GPU of 16 GiB with a share of 8 GiB; changes as the real one does.
struct OneShareAgent final : Agent {
  NodeState state;
  int updates = 0;
  std::optional<Error> refusal;

  OneShareAgent() {
    state.devices.resize(1);
    state.devices[0].uuid = "GPU-0";
    state.devices[0].total_bytes = 16 * kGiB;
    api::ShareStatus share;
    share.name = ShareNameOfClaim(kResizedUid);
    api::ShareDevice on;
    on.uuid = "GPU-0";
    on.memory_limit_bytes = on.memory_request_bytes = 8 * kGiB;
    on.compute_request = {300'000};
    on.compute_limit = Fraction::One();
    share.devices.push_back(on);
    state.shares.push_back(share);
  }
  api::ShareDevice& on() { return state.shares[0].devices[0]; }

  Result<NodeState> List(Deadline) override {
    state.devices[0].promised_bytes = on().memory_request_bytes;
    return state;
  }
  Result<api::ShareStatus> Create(const api::ShareSpec&, Deadline) override {
    return Fail("unused", "");
  }
  Result<api::ShareStatus> Update(const std::string&, const api::ShareChange& change,
                                  Deadline) override {
    if (refusal) return std::unexpected(*refusal);
    ++updates;
    if (change.memory) on().memory_limit_bytes = change.memory->bytes;
    if (change.memory_request) on().memory_request_bytes = change.memory_request->bytes;
    if (change.compute_request) on().compute_request = *change.compute_request;
    if (change.weight) on().weight = *change.weight;
    return state.shares[0];
  }
  Status Remove(const std::string&, Deadline) override { return {}; }
};

struct RecordedEvents final : PodEvents {
  std::vector<std::string> said;

  Status Record(const PodReference& pod, bool warning, const std::string& reason,
                const std::string& message) override {
    said.push_back(pod.name + (warning ? " warning " : " ") + reason + ": " + message);
    return {};
  }
};

struct ResizesTest : testing::Test {
  ClaimsOfCluster api;
  OneShareAgent agent;
  RecordedEvents events;
  int changes = 0;
  Claims claims{api, agent, "n1", [] {}};
  Resizes resizes{claims, agent, events, [this] { ++changes; }};
  std::vector<PodView> pods = {Pod("train")};

  ResizesTest() {
    api.allocated[kResizedUid] = AllocatedJson(kResizedUid, "train-gpu-x7k2p", "8Gi");
  }

  static PodView Pod(const std::string& name) {
    return {"team", name, "uid-" + name, true, {}, {{"gpu", "train-gpu-x7k2p"}}};
  }
  void Reconcile() {
    const auto ok =
        resizes.Reconcile(pods, std::chrono::steady_clock::now() + std::chrono::seconds(60));
    EXPECT_TRUE(ok) << ok.error().message;
  }
};

TEST_F(ResizesTest, AnnotationsChangeTheShareOnce) {
  Reconcile();
  EXPECT_EQ(agent.updates, 0);
  pods[0].annotations = {{"prorata.dev/memory", "12Gi"}, {"prorata.dev/compute", "50"}};
  for (int i = 0; i < 3; ++i) Reconcile();
  EXPECT_EQ(agent.updates, 1);
  EXPECT_EQ(changes, 1);
  EXPECT_EQ(agent.on().memory_limit_bytes, 12 * kGiB);
  EXPECT_EQ(agent.on().memory_request_bytes, 12 * kGiB);
  EXPECT_EQ(events.said,
            (std::vector<std::string>{"train ShareResized: the share of claim 'gpu' was resized: "
                                      "memory 8 GiB to 12 GiB, compute 30% to 50%"}));
}

TEST_F(ResizesTest, AnotherDriverDoesNotDoItAgain) {
  pods[0].annotations = {{"prorata.dev/memory", "12Gi"}};
  Reconcile();
  Claims new_claims(api, agent, "n1", [] {});
  Resizes anew(new_claims, agent, events, [] {});
  ASSERT_TRUE(anew.Reconcile(pods, std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  EXPECT_EQ(agent.updates, 1);
  EXPECT_EQ(events.said.size(), 1u);
}

TEST_F(ResizesTest, WithoutTheAnnotationItIsTheClaimsSizeAgain) {
  pods[0].annotations = {{"prorata.dev/memory", "12Gi"}};
  Reconcile();
  pods[0].annotations.clear();
  Reconcile();
  EXPECT_EQ(agent.on().memory_limit_bytes, 8 * kGiB);
}

TEST_F(ResizesTest, RefusedIsReportedOnceAndTriedAgain) {
  agent.refusal = Error{"memory_exceeded", "there are only 8 GiB left"};
  pods[0].annotations = {{"prorata.dev/memory", "20Gi"}};
  for (int i = 0; i < 3; ++i) Reconcile();
  EXPECT_EQ(events.said, (std::vector<std::string>{
                             "train warning ShareResizeRefused: the share of claim 'gpu' stays as "
                             "before: there are only 8 GiB left"}));
  EXPECT_EQ(agent.on().memory_limit_bytes, 8 * kGiB);
  agent.refusal.reset();
  Reconcile();
  EXPECT_EQ(agent.on().memory_limit_bytes, 20 * kGiB);
  EXPECT_EQ(events.said.size(), 2u);
}

TEST_F(ResizesTest, AWrongValueChangesNothing) {
  pods[0].annotations = {{"prorata.dev/memory", "12Gi"}, {"prorata.dev/compute", "half"}};
  for (int i = 0; i < 2; ++i) Reconcile();
  EXPECT_EQ(agent.updates, 0);
  ASSERT_EQ(events.said.size(), 1u);
  EXPECT_NE(events.said[0].find("annotation prorata.dev/compute is 'half'"), std::string::npos);
}

TEST_F(ResizesTest, ShrinksToWhatIsUsedAndNotBelow) {
  agent.on().used_bytes = 3 * kGiB;
  pods[0].annotations = {{"prorata.dev/memory", "2Gi"}};
  Reconcile();
  EXPECT_EQ(agent.updates, 0);
  ASSERT_EQ(events.said.size(), 1u);
  EXPECT_NE(events.said[0].find("its programs hold 3 GiB of GPU 0, more than the 2 GiB"),
            std::string::npos);
  pods[0].annotations = {{"prorata.dev/memory", "3Gi"}};
  Reconcile();
  EXPECT_EQ(agent.on().memory_limit_bytes, 3 * kGiB);
}

TEST_F(ResizesTest, WhatIsAllocatedAndNotPreparedKeepsItsPlace) {
  api.allocated[kComingUid] = AllocatedJson(kComingUid, "next", "6Gi");
  pods[0].annotations = {{"prorata.dev/memory", "11Gi"}};
  Reconcile();
  EXPECT_EQ(agent.updates, 0);
  ASSERT_EQ(events.said.size(), 1u);
  EXPECT_NE(events.said[0].find("8 GiB left, of which 6 GiB are allocated to pods"),
            std::string::npos);
  pods[0].annotations = {{"prorata.dev/memory", "10Gi"}};
  Reconcile();
  EXPECT_EQ(agent.on().memory_limit_bytes, 10 * kGiB);
}

TEST_F(ResizesTest, PodsOfOneClaimThatDisagreeAreBothRefused) {
  pods.push_back(Pod("other"));
  pods[0].annotations = {{"prorata.dev/memory", "9Gi"}};
  pods[1].annotations = {{"prorata.dev/memory", "10Gi"}};
  Reconcile();
  EXPECT_EQ(agent.updates, 0);
  EXPECT_EQ(events.said.size(), 2u);
  pods[1].annotations.clear();
  Reconcile();
  EXPECT_EQ(agent.on().memory_limit_bytes, 9 * kGiB);
}

TEST_F(ResizesTest, AnUnreachableAgentIsNobodysRefusal) {
  agent.refusal = Error{"connect", "cannot reach the agent"};
  pods[0].annotations = {{"prorata.dev/memory", "12Gi"}};
  EXPECT_FALSE(
      resizes.Reconcile(pods, std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  EXPECT_TRUE(events.said.empty());
}

TEST(PodSet, KeepsThoseWithClaims) {
  const auto pod = [](const char* uid, const char* memory) {
    return json{
        {"metadata",
         {{"namespace", "team"},
          {"name", "p"},
          {"uid", uid},
          {"resourceVersion", "7"},
          {"annotations", {{"prorata.dev/memory", memory}}}}},
        {"spec",
         {{"resourceClaims",
           {{{"name", "gpu"}, {"resourceClaimTemplateName", "t"}},
            {{"name", "shared"}, {"resourceClaimName", "both"}}}}}},
        {"status",
         {{"phase", "Running"},
          {"resourceClaimStatuses", {{{"name", "gpu"}, {"resourceClaimName", "p-gpu-1"}}}}}}};
  };
  PodSet pods;
  const json without = {{"metadata", {{"namespace", "team"}, {"name", "q"}, {"uid", "u2"}}},
                        {"spec", json::object()}};
  ASSERT_TRUE(pods.Change(pod("u1", "1Gi")));
  ASSERT_TRUE(pods.Change(without));
  ASSERT_EQ(pods.WithClaims().size(), 1u);
  const PodView view = pods.WithClaims()[0];
  EXPECT_TRUE(view.running);
  EXPECT_EQ(view.claims[0].name, "p-gpu-1");
  EXPECT_EQ(view.claims[1].name, "both");
  ASSERT_TRUE(pods.Change(pod("u1", "2Gi")));
  EXPECT_EQ(pods.WithClaims()[0].annotations.at("prorata.dev/memory"), "2Gi");
  ASSERT_TRUE(pods.Change(pod("u3", "1Gi")));
  const auto bad = pods.Change({{"metadata", {{"name", "r"}}}});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, "bad_pod");
  EXPECT_EQ(pods.WithClaims().size(), 2u);
  pods.KeepOnly({"u2", "u3"});
  ASSERT_EQ(pods.WithClaims().size(), 1u);
  EXPECT_EQ(pods.WithClaims()[0].uid, "u3");
  pods.Remove("u3");
  EXPECT_TRUE(pods.WithClaims().empty());
}

}  // namespace
}  // namespace prorata::kubernetes
