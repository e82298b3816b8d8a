#include "kubernetes/kubectl/pod_shares.h"

#include <gtest/gtest.h>

#include "base/fraction.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr uint64_t kMebi = uint64_t{1} << 20;

api::ShareStatus ShareNamed(const std::string& name, const std::string& container_id = "") {
  api::ShareStatus share;
  share.name = name;
  api::ShareDevice on;
  on.memory_limit_bytes = 8192 * kMebi;
  on.used_bytes = 512 * kMebi;
  on.compute_request = ParseFraction("0.3").value();
  on.compute_limit = Fraction::One();
  on.achieved = 0.25;
  on.active = false;
  share.devices.push_back(on);
  if (!container_id.empty())
    share.container = api::ContainerStatus{"containerd", container_id, "x"};
  return share;
}

json ListedPod(const std::string& name, const std::string& container_id) {
  return {{"metadata", {{"name", name}, {"namespace", "team"}}},
          {"status",
           {{"containerStatuses",
             {{{"name", "main"}, {"containerID", "containerd://" + container_id}}}}}}};
}

json ListedClaim(const std::string& uid, std::vector<std::string> pods) {
  json users = json::array();
  for (const std::string& pod : pods) users.push_back({{"resource", "pods"}, {"name", pod}});
  return {{"metadata", {{"name", "c"}, {"namespace", "team"}, {"uid", uid}}},
          {"status", {{"reservedFor", users}}}};
}

TEST(PodShares, AContainerThatRunsOnAShareHasIt) {
  const auto found = PodShares(json::array({ListedPod("a", "id1"), ListedPod("b", "id2")}),
                               json::array(), {{"n1", {ShareNamed("pod-7", "id2")}}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].pod, "b");
  EXPECT_EQ(found[0].container, "main");
  EXPECT_EQ(found[0].node, "n1");
}

TEST(PodShares, AContainerThatHasAShareAndDoesNotUseIt) {
  const json plugin = {{"spec",
                        {{"containers",
                          {{{"command", {"prorata-kubernetes", "device-plugin"}},
                            {"args", {"--memory-resource", "tencent.com/vcuda-memory"}}}}}}}};
  // GPU time has IDs of its own, which are numbers as well.
  const std::string checkpoint = R"({"Data": {"PodDeviceEntries": [
    {"PodUID": "u1", "ContainerName": "first", "ResourceName": "tencent.com/vcuda-memory",
     "DeviceIDs": {"0": ["7", "8"]}},
    {"PodUID": "u1", "ContainerName": "main", "ResourceName": "tencent.com/vcuda-memory",
     "DeviceIDs": {"0": ["8", "7", "9"]}},
    {"PodUID": "u2", "ContainerName": "main", "ResourceName": "tencent.com/vcuda-core",
     "DeviceIDs": {"0": ["7"]}}]}})";
  json pod = ListedPod("a", "id1");
  pod["metadata"]["uid"] = "u1";
  NodeShares node{"n1", {ShareNamed("pod-unit-7"), ShareNamed("pod-unit-1")}, {}};
  node.holders = HoldersOf(checkpoint, plugin);
  EXPECT_EQ(node.holders.size(), 1u);
  const auto found = PodShares(json::array({pod}), json::array(), {node});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].pod, "pod-unit-1") << "nobody's";
  EXPECT_EQ(found[1].pod + "/" + found[1].container, "a/main");
  EXPECT_TRUE(HoldersOf(checkpoint, ListedPod("b", "")).empty()) << "those of another plugin";
  EXPECT_TRUE(HoldersOf("cat: no such file", plugin).empty());
}

TEST(PodShares, AKaiPodsShareIsNamedByItsUid) {
  const std::string uid = "5f0c1c1e-1111-4222-8333-444455556666";
  json pod = ListedPod("a", "id1");
  pod["metadata"]["uid"] = uid;
  const auto found =
      PodShares(json::array({pod}), json::array(), {{"n1", {ShareNamed("kai-" + uid)}, {}}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].pod_namespace + "/" + found[0].pod, "team/a");
  EXPECT_EQ(found[0].container, "-");
}

TEST(PodShares, AClaimsShareIsOfThePodsThatItIsReservedFor) {
  const auto found =
      PodShares(json::array({ListedPod("a", "id1"), ListedPod("b", "id2")}),
                json::array({ListedClaim("uid-1", {"b", "a"}), ListedClaim("uid-2", {})}),
                {{"n1", {ShareNamed("claim-uid-1"), ShareNamed("claim-uid-2")}}});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].pod, "claim-uid-2") << "nobody's: by its own name";
  EXPECT_EQ(found[0].pod_namespace, "-");
  EXPECT_EQ(found[1].pod, "a");
  EXPECT_EQ(found[2].pod, "b");
}

TEST(PodShares, TheContainersOfAClaimAreThoseThatReferToIt) {
  json pod = ListedPod("a", "id1");
  pod["spec"] = {
      {"resourceClaims", {{{"name", "gpu"}}, {{"name", "own"}, {"resourceClaimName", "mine"}}}},
      {"containers",
       {{{"name", "main"}, {"resources", {{"claims", {{{"name", "gpu"}}}}}}},
        {{"name", "side"}, {"resources", {{"claims", {{{"name", "own"}}}}}}},
        {{"name", "both"}, {"resources", {{"claims", {{{"name", "own"}}, {{"name", "gpu"}}}}}}}}}};
  pod["status"]["resourceClaimStatuses"] = {{{"name", "gpu"}, {"resourceClaimName", "c"}}};
  json mine = ListedClaim("uid-2", {"a"});
  mine["metadata"]["name"] = "mine";
  const auto found = PodShares(json::array({pod}), json::array({ListedClaim("uid-1", {"a"}), mine}),
                               {{"n1", {ShareNamed("claim-uid-1"), ShareNamed("claim-uid-2")}}});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].container, "main,both");
  EXPECT_EQ(found[1].container, "side,both");
}

TEST(PodShares, WhatAnApiServerMaySayWithoutBeingUnderstoodIsNoPod) {
  const json odd = json::array({1,
                                "x",
                                json::object(),
                                {{"metadata", 3}, {"status", json::array()}},
                                {{"status", {{"containerStatuses", {3, {{"containerID", 4}}}}}}}});
  const auto found = PodShares(odd, odd, {{"n1", {ShareNamed("train", "id9")}}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].pod, "train");
}

TEST(PodShares, ATableHasALineForEachGpu) {
  auto share = ShareNamed("claim-u", "id1");
  share.devices.push_back(share.devices.front());
  share.devices.back().index = 1;
  const std::string table =
      PodTable(PodShares(json::array({ListedPod("a", "id1")}), json::array(), {{"n1", {share}}}));
  EXPECT_EQ(table,
            "NAMESPACE  POD  CONTAINER  NODE  GPU  MEMORY           COMPUTE   GPU TIME  "
            "ENTITLED  WHY\n"
            "team       a    main       n1    0    512 MiB / 8 GiB  30%-100%  25.0%     -      "
            "   runs\n"
            "team       a    main       n1    1    512 MiB / 8 GiB  30%-100%  25.0%     -      "
            "   runs\n");
}

TEST(PodShares, WhyAPodIsSlowOrHasNothing) {
  auto share = ShareNamed("claim-u", "id1");
  share.devices[0].throttle_reasons = {ThrottleReason::kWaitsForOthers};
  share.devices[0].waiting_part = 0.5;
  share.devices[0].refusals = 2;
  json pod = ListedPod("a", "id1");
  const auto shares = PodShares(json::array({pod}), json::array(), {{"n1", {share}}});
  EXPECT_EQ(WhyText(pod, json::array(), shares),
            "container main on GPU 0 of n1: waits for other shares 50%\n"
            "  has 25.0% of the GPU's time (request-limit 30%-100%, entitled -), holds 512 MiB "
            "/ 8 GiB\n"
            "  allocations refused: 2\n");
  json waiting = ListedPod("c", "id3");
  waiting["status"]["conditions"] = {
      {{"type", "PodScheduled"}, {"status", "False"}, {"message", "no room"}}};
  EXPECT_EQ(WhyText(waiting, json::array(), shares), "pod c has no share: no room\n");
  const json events = {{{"type", "Normal"}, {"reason", "Pulled"}, {"message", "x"}},
                       {{"type", "Warning"}, {"reason", "FailedPrepare"}, {"message", "no agent"}}};
  EXPECT_EQ(WhyText(ListedPod("d", "id4"), events, shares),
            "pod d has no share: FailedPrepare: no agent\n");
}

}  // namespace
}  // namespace prorata::kubernetes
