#include "kubernetes/admission/review.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/bytes.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

struct FakeCluster final : Cluster {
  std::vector<uint64_t> sizes = {16 * kGiB};
  std::map<std::string, json> templates;
  std::set<std::string> own;  // claims and templates of prorata's class
  std::optional<Error> broken;
  bool has_groups = true;
  std::map<std::string, json> groups;

  Result<bool> HasDriver() override { return true; }
  Result<std::vector<uint64_t>> GpuSizes(GpusOf where) override {
    EXPECT_EQ(where, GpusOf::kSlices);
    if (broken) return std::unexpected(*broken);
    return sizes;
  }
  Result<bool> IsOfProrata(const std::string&, const json& entry) override {
    return own.contains(entry.value("resourceClaimTemplateName", ""));
  }
  Status EnsureTemplate(const std::string& name_space, const json& made) override {
    templates[name_space + "/" + made["metadata"]["name"].get<std::string>()] = made;
    return {};
  }
  Result<bool> HasGroups() override { return has_groups; }
  Status EnsureGroup(const std::string& name_space, const json& made) override {
    groups[name_space + "/" + made["metadata"]["name"].get<std::string>()] = made;
    return {};
  }
};

std::string Decoded(const std::string& text) {
  std::string bytes(text.size(), '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  bytes.resize(static_cast<size_t>(size));
  while (bytes.ends_with('\0')) bytes.pop_back();
  return bytes;
}

json HamiPod() {
  return json::parse(R"({
    "metadata": {"name": "gpu-pod"},
    "spec": {"schedulerName": "hami-scheduler", "containers": [
      {"name": "ubuntu", "resources": {
        "limits": {"cpu": "1", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"},
        "requests": {"cpu": "1", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}}},
      {"name": "log"}]}})");
}

struct ReviewTest : testing::Test {
  FakeCluster cluster;
  ReviewOptions options;
  bool dry_run = false;

  json Ask(const json& pod, const json& before = json()) {
    const json review = {{"request",
                          {{"uid", "u-1"},
                           {"operation", before.is_null() ? "CREATE" : "UPDATE"},
                           {"namespace", "team"},
                           {"dryRun", dry_run},
                           {"object", pod},
                           {"oldObject", before}}}};
    const json answer = Review(review, cluster, options);
    EXPECT_EQ(answer["kind"], "AdmissionReview");
    EXPECT_EQ(answer["response"]["uid"], "u-1");
    return answer["response"];
  }
  json Patched(const json& pod) {
    const json response = Ask(pod);
    EXPECT_EQ(response["allowed"], true) << response;
    if (!response.contains("patch")) return pod;
    return pod.patch(json::parse(Decoded(response["patch"])));
  }
  std::string WhyRefused(const json& pod, const json& before = json()) {
    const json response = Ask(pod, before);
    return response["allowed"] == false ? response["status"]["message"] : "";
  }
  json OnlyDevices() {
    EXPECT_EQ(cluster.templates.size(), 1u);
    return cluster.templates.begin()->second["spec"]["spec"]["devices"];
  }
};

TEST_F(ReviewTest, ResourcesBecomeAClaim) {
  const json pod = Patched(HamiPod());
  const json& spec = pod["spec"];
  ASSERT_EQ(cluster.templates.size(), 1u);
  const std::string name = spec["resourceClaims"][0]["resourceClaimTemplateName"];
  EXPECT_TRUE(cluster.templates.contains("team/" + name));
  EXPECT_EQ(spec["resourceClaims"][0]["name"], "prorata-ubuntu");
  EXPECT_EQ(spec["containers"][0]["resources"],
            json::parse(R"({"limits": {"cpu": "1"}, "requests": {"cpu": "1"},
                            "claims": [{"name": "prorata-ubuntu"}]})"));
  EXPECT_FALSE(spec["containers"][1].contains("resources"));
  EXPECT_EQ(spec["schedulerName"], "default-scheduler");
  EXPECT_EQ(pod["metadata"]["annotations"]["prorata.dev/translated-from"], "HAMi");
  EXPECT_EQ(OnlyDevices(), json::parse(R"({"requests": [{"name": "gpu", "exactly": {
    "deviceClassName": "gpu.prorata.dev", "allocationMode": "ExactCount", "count": 1,
    "capacity": {"requests": {"memory": "3Gi", "compute": "0"}}}}]})"));
}

TEST_F(ReviewTest, EqualPodsShareATemplateAndOthersDoNot) {
  Ask(HamiPod());
  Ask(HamiPod());
  EXPECT_EQ(cluster.templates.size(), 1u);
  json other = HamiPod();
  other["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "4000";
  Ask(other);
  EXPECT_EQ(cluster.templates.size(), 2u);
}

TEST_F(ReviewTest, ADryRunMakesNothing) {
  dry_run = true;
  EXPECT_TRUE(Ask(HamiPod()).contains("patch"));
  EXPECT_TRUE(cluster.templates.empty());
}

TEST_F(ReviewTest, SeveralGpusAreDistinct) {
  json pod = HamiPod();
  pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "2";
  pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/priority"] = "0";
  Ask(pod);
  EXPECT_EQ(OnlyDevices()["requests"][0]["exactly"]["count"], 2);
  EXPECT_EQ(OnlyDevices()["constraints"],
            json::parse(R"([{"distinctAttribute": "gpu.prorata.dev/uuid"}])"));
  EXPECT_EQ(OnlyDevices()["config"][0]["opaque"]["parameters"]["priority"], 1);
}

TEST_F(ReviewTest, AChoiceOfGpusBecomesSelectors) {
  json pod = HamiPod();
  pod["metadata"]["annotations"] = {{"nvidia.com/use-gputype", "A100,Tesla-V100"},
                                    {"nvidia.com/nouse-gpuuuid", "GPU-1"}};
  Ask(pod);
  const json selectors = OnlyDevices()["requests"][0]["exactly"]["selectors"];
  ASSERT_EQ(selectors.size(), 2u);
  const std::string model =
      R"(device.attributes["gpu.prorata.dev"].model.lowerAscii().replace("-", " "))";
  EXPECT_EQ(selectors[0]["cel"]["expression"],
            model + R"(.contains("a100") || )" + model + R"(.contains("tesla v100"))");
  EXPECT_EQ(selectors[1]["cel"]["expression"],
            R"(!(device.attributes["gpu.prorata.dev"].uuid == "GPU-1"))");
}

TEST_F(ReviewTest, OwnAnnotationsChooseGpus) {
  json pod = HamiPod();
  pod["metadata"]["annotations"] = {{"prorata.dev/gpu-model", "!V100"}};
  Ask(pod);
  EXPECT_EQ(OnlyDevices()["requests"][0]["exactly"]["selectors"].size(), 1u);
  pod["metadata"]["annotations"] = {{"prorata.dev/gpu-model", "A100,"}};
  EXPECT_NE(WhyRefused(pod).find("must be names with commas between them"), std::string::npos);
  // A claim of its author's has selectors of its own.
  cluster.own = {"mine"};
  json claimed = {
      {"metadata", {{"name", "a"}, {"annotations", {{"prorata.dev/gpu-model", "A100"}}}}},
      {"spec",
       {{"containers", {{{"name", "main"}}}},
        {"resourceClaims", {{{"name", "gpu"}, {"resourceClaimTemplateName", "mine"}}}}}}};
  EXPECT_EQ(Ask(claimed)["warnings"],
            json({"annotation prorata.dev/gpu-model has no effect on a claim; give its request a "
                  "selector"}));
}

TEST_F(ReviewTest, APartOfTheMemoryIsOfEachSizeOfGpu) {
  json pod = HamiPod();
  pod["spec"]["containers"][0]["resources"].erase("requests");
  auto& limits = pod["spec"]["containers"][0]["resources"]["limits"];
  limits.erase("nvidia.com/gpumem");
  limits["nvidia.com/gpumem-percentage"] = "30";
  Ask(pod);
  EXPECT_EQ(OnlyDevices()["requests"][0]["exactly"]["capacity"]["requests"]["memory"], "4864Mi");
  cluster.templates.clear();
  cluster.sizes = {16 * kGiB, 80 * kGiB};
  Ask(pod);
  const json requests = OnlyDevices()["requests"][0]["firstAvailable"];
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[1]["capacity"]["requests"]["memory"], "24Gi");
  EXPECT_EQ(requests[1]["selectors"][0]["cel"]["expression"],
            "device.attributes[\"gpu.prorata.dev\"].memoryMiB == 81920");
  cluster.sizes.clear();
  EXPECT_NE(WhyRefused(pod).find("the cluster has no GPU of prorata's"), std::string::npos);
}

TEST_F(ReviewTest, MoreMemoryThanAnyGpuHasIsRefused) {
  json pod = HamiPod();
  pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "20480";
  EXPECT_EQ(WhyRefused(pod),
            "the pod asks for 20 GiB of a GPU's memory, and the cluster's largest GPU has 16 GiB");
  cluster.sizes = {};  // it may grow
  EXPECT_EQ(WhyRefused(pod), "");
}

TEST_F(ReviewTest, OwnAnnotationsAreTheShortForm) {
  json pod = HamiPod();
  pod["spec"]["containers"][0].erase("resources");
  pod["metadata"]["annotations"] = {{"prorata.dev/memory", "8Gi"},
                                    {"prorata.dev/compute", "30"},
                                    {"prorata.dev/compute-limit", "60"}};
  const json made = Patched(pod);
  EXPECT_EQ(made["spec"]["resourceClaims"][0]["name"], "prorata");
  for (const json& container : made["spec"]["containers"]) {
    EXPECT_EQ(container["resources"]["claims"][0]["name"], "prorata");
  }
  EXPECT_EQ(OnlyDevices()["config"][0]["opaque"]["parameters"]["computeLimit"], 60);
  pod["metadata"]["annotations"] = {{"prorata.dev/weight", "200"}};
  EXPECT_NE(WhyRefused(pod).find("it asks for none"), std::string::npos);
  pod["metadata"]["annotations"] = {{"prorata.dev/memory", "8 GB"}};
  EXPECT_NE(WhyRefused(pod).find("annotation prorata.dev/memory is '8 GB'"), std::string::npos);
  options.translate.erase("annotations");
  EXPECT_EQ(WhyRefused(pod), "");
}

TEST_F(ReviewTest, AClaimAndExtendedResourcesAreRefused) {
  json pod = HamiPod();
  pod["spec"]["resourceClaims"] = {{{"name", "gpu"}, {"resourceClaimTemplateName", "t"}}};
  EXPECT_EQ(WhyRefused(pod), "") << "a claim of something else";
  cluster.own = {"t"};
  EXPECT_EQ(WhyRefused(pod),
            "the pod has the claim 'gpu' for a part of a GPU, and its container 'ubuntu' asks for "
            "one by extended resources as well; keep one of the two");
  options.translate.clear();
  EXPECT_NE(WhyRefused(pod), "");
  json labelled = json::parse(R"({"metadata": {"labels": {"sharedgpu/gpu_request": "0.5"}},
    "spec": {"containers": [{"name": "main"}],
             "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}})");
  options = {};
  EXPECT_NE(WhyRefused(labelled).find("in the names of KubeShare as well"), std::string::npos);
}

TEST_F(ReviewTest, WhatGetsAroundAShareIsRefused) {
  json pod = HamiPod();
  pod["spec"]["containers"][1]["securityContext"] = {{"privileged", true}};
  EXPECT_EQ(WhyRefused(pod),
            "container 'log' is privileged and would see all GPUs of its node, with nothing that "
            "holds it to its share; remove securityContext.privileged");
  options.allow_bypass = true;
  EXPECT_EQ(WhyRefused(pod), "");
  options.allow_bypass = false;
  const auto with_path = [](const char* path) {
    json made = HamiPod();
    made["spec"]["volumes"] = {{{"name", "host"}, {"hostPath", {{"path", path}}}}};
    return made;
  };
  for (const char* path :
       {"/", "/dev", "/dev/nvidia0", "/dev//nvidia0", "/dev/./nvidia0", "/./dev", "/dev/char/195:0",
        "/dev/dri", "/run", "/run//prorata", "/run/prorata/", "/var/run"}) {
    EXPECT_NE(WhyRefused(with_path(path)), "") << path;
  }
  for (const char* path :
       {"/data", "/dev/shm", "/dev/infiniband/uverbs0", "/run/user", "/devices"}) {
    EXPECT_EQ(WhyRefused(with_path(path)), "") << path;
  }
  json environment = HamiPod();
  environment["spec"]["containers"][0]["env"] = {
      {{"name", "NVIDIA_VISIBLE_DEVICES"}, {"value", "all"}}};
  EXPECT_NE(WhyRefused(environment), "");
  environment["spec"]["containers"][0]["env"][0]["value"] = "void";
  EXPECT_EQ(WhyRefused(environment), "");
  environment["spec"]["containers"][0]["env"][0] = {
      {"name", "NVIDIA_VISIBLE_DEVICES"}, {"valueFrom", {{"fieldRef", {{"fieldPath", "x"}}}}}};
  EXPECT_NE(WhyRefused(environment), "");
  // Whoever has no share is none of ours.
  json privileged = json::parse(R"({"spec": {"containers": [
      {"name": "cni", "securityContext": {"privileged": true}}]}})");
  EXPECT_EQ(WhyRefused(privileged), "");
}

TEST_F(ReviewTest, AnnotationsOfARunningPodAreChecked) {
  cluster.own = {"t"};
  json before = json::parse(R"({"metadata": {"name": "p", "annotations": {}}, "spec": {
    "containers": [{"name": "main"}],
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}})");
  json after = before;
  after["metadata"]["annotations"]["prorata.dev/memory"] = "12Gi";
  EXPECT_EQ(WhyRefused(after, before), "");
  after["metadata"]["annotations"]["prorata.dev/memory"] = "0";
  EXPECT_NE(WhyRefused(after, before).find("annotation prorata.dev/memory is '0'"),
            std::string::npos);
  json unrelated = after;
  unrelated["metadata"]["annotations"]["example.com/note"] = "x";
  EXPECT_EQ(WhyRefused(unrelated, after), "") << "a pod that has it must still be changeable";
}

TEST_F(ReviewTest, AContainerForDebuggingMayNotGetAroundTheShare) {
  cluster.own = {"t"};
  const json before = json::parse(R"({"metadata": {"name": "p"}, "spec": {
    "containers": [{"name": "main"}],
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}})");
  json after = before;
  after["spec"]["ephemeralContainers"] =
      json::parse(R"([{"name": "debugger"}, {"name": "second"}])");
  EXPECT_EQ(WhyRefused(after, before), "");
  after["spec"]["ephemeralContainers"][1]["securityContext"]["privileged"] = true;
  EXPECT_NE(WhyRefused(after, before).find("container 'second' is privileged"), std::string::npos);
  cluster.own.clear();
  EXPECT_EQ(WhyRefused(after, before), "");
}

TEST_F(ReviewTest, AContainerWithAShareHasNoOtherGpu) {
  cluster.own = {"t"};
  json pod = json::parse(R"({"metadata": {"name": "p"}, "spec": {"containers": [
      {"name": "main", "resources": {"claims": [{"name": "gpu"}]}},
      {"name": "side", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}})");
  EXPECT_EQ(WhyRefused(pod), "") << "a whole GPU for another container is another matter";
  for (const char* name : {"nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"}) {
    pod["spec"]["containers"][0]["resources"]["limits"] = {{name, "1"}};
    EXPECT_NE(WhyRefused(pod).find("container 'main' has a share and asks for"), std::string::npos);
  }
  pod["spec"]["containers"][0]["resources"]["limits"] = {{"nvidia.com/gpu", "0"}};
  EXPECT_EQ(WhyRefused(pod), "");
}

// A pod that shared a GPU by NVIDIA's time-slicing or MPS, with what it is to have of it.
TEST_F(ReviewTest, AnnotationsStandInForNvidiasResource) {
  for (const char* name : {"nvidia.com/gpu", "nvidia.com/gpu.shared"}) {
    json pod = json::parse(R"({"metadata": {"name": "p", "annotations": {
      "prorata.dev/memory": "8Gi", "prorata.dev/compute": "25"}},
      "spec": {"containers": [{"name": "main"}, {"name": "log"}]}})");
    pod["spec"]["containers"][0]["resources"]["limits"] = {{name, "1"}, {"cpu", "1"}};
    const json containers = Patched(pod)["spec"]["containers"];
    EXPECT_EQ(containers[0]["resources"],
              json::parse(R"({"limits": {"cpu": "1"}, "claims": [{"name": "prorata"}]})"));
    EXPECT_FALSE(containers[1].contains("resources"));
    pod["spec"]["containers"][0]["resources"]["limits"][name] = "2";
    EXPECT_NE(WhyRefused(pod).find("asks for 2 of"), std::string::npos);
  }
}

json KubeShareWorker() {
  return json::parse(R"({"metadata": {"name": "worker", "labels": {
    "sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0", "sharedgpu/group_name": "train",
    "sharedgpu/group_headcount": "4", "sharedgpu/group_threshold": "0.5"}},
    "spec": {"schedulerName": "kubeshare-scheduler", "containers": [{"name": "main"}]}})");
}

TEST_F(ReviewTest, AGroupIsOneOfKubernetesOwn) {
  const json pod = Patched(KubeShareWorker());
  EXPECT_EQ(pod["spec"]["schedulingGroup"], json({{"podGroupName", "train-2"}}));
  ASSERT_TRUE(cluster.groups.contains("team/train-2"));
  EXPECT_EQ(cluster.groups["team/train-2"]["spec"],
            json::parse(R"({"schedulingPolicy": {"gang": {"minCount": 2}}})"));
  // One with claims of its own, and a copy of it when it runs.
  cluster.own = {pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]};
  json own = pod;
  own["metadata"].erase("labels");
  EXPECT_EQ(Patched(own), own);
  own["spec"].erase("schedulingGroup");
  EXPECT_EQ(Patched(own)["spec"], pod["spec"]);
  EXPECT_EQ(cluster.groups.size(), 1u);
}

TEST_F(ReviewTest, ADryRunMakesNoGroup) {
  dry_run = true;
  EXPECT_TRUE(Ask(KubeShareWorker()).contains("patch"));
  EXPECT_TRUE(cluster.groups.empty());
}

TEST_F(ReviewTest, AGroupThatCannotBeIsRefused) {
  json pod = KubeShareWorker();
  for (const char* name : {"Train", "a_b", "-a", "a..b", "a-.b"}) {
    pod["metadata"]["labels"]["sharedgpu/group_name"] = name;
    EXPECT_NE(WhyRefused(pod).find("has no name for a PodGroup"), std::string::npos) << name;
  }
  pod["metadata"]["labels"]["sharedgpu/group_name"] = "a.b-c";
  EXPECT_EQ(WhyRefused(pod), "");
  pod["spec"]["schedulingGroup"] = {{"podGroupName", "other"}};
  EXPECT_NE(WhyRefused(pod).find("keep one of the two"), std::string::npos);
  pod = KubeShareWorker();
  pod["metadata"]["annotations"]["prorata.dev/group"] = "train";
  pod["metadata"]["labels"].erase("sharedgpu/group_name");
  EXPECT_NE(WhyRefused(pod).find("go together"), std::string::npos);
}

TEST_F(ReviewTest, WithoutGroupsInTheClusterAPodIsWarned) {
  cluster.has_groups = false;
  const json response = Ask(KubeShareWorker());
  EXPECT_NE(response["warnings"][0].get<std::string>().find("placed one by one"),
            std::string::npos);
  EXPECT_FALSE(Patched(KubeShareWorker())["spec"].contains("schedulingGroup"));
  EXPECT_TRUE(cluster.groups.empty());
}

TEST_F(ReviewTest, WithoutTheApiServerItIsRefusedForNow) {
  cluster.broken = Error{"api_unreachable", "no answer"};
  const json response = Ask(HamiPod());
  EXPECT_EQ(response["allowed"], false);
  EXPECT_EQ(response["status"]["code"], 503);
}

TEST_F(ReviewTest, NonsenseIsAnswered) {
  for (const char* text : {"{}", R"({"request": {"operation": "CREATE"}})",
                           R"({"request": {"operation": "CREATE", "object": []}})",
                           R"({"request": {"uid": 3, "operation": "DELETE", "object": null}})"}) {
    EXPECT_TRUE(Review(json::parse(text), cluster, options).contains("response")) << text;
  }
}

}  // namespace
}  // namespace prorata::kubernetes
