#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "kubernetes/admission/review.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

// A cluster with the device plugin.
struct PluginCluster final : Cluster {
  std::vector<uint64_t> sizes = {16 * kGiB};

  Result<bool> HasDriver() override { return false; }
  Result<std::vector<uint64_t>> GpuSizes(GpusOf where) override {
    EXPECT_EQ(where, GpusOf::kNodes);
    return sizes;
  }
  Result<bool> IsOfProrata(const std::string&, const json&) override {
    ADD_FAILURE() << "a cluster without DRA has no claims";
    return false;
  }
  Status EnsureTemplate(const std::string&, const json&) override {
    ADD_FAILURE() << "a cluster without DRA has no templates";
    return {};
  }
  Result<bool> HasGroups() override {
    ADD_FAILURE() << "the extender places groups";
    return false;
  }
  Status EnsureGroup(const std::string&, const json&) override { return {}; }
};

json Pod(const json& limits, const json& annotations = json::object(),
         const json& labels = json::object()) {
  return {{"metadata", {{"name", "a"}, {"annotations", annotations}, {"labels", labels}}},
          {"spec",
           {{"schedulerName", "hami-scheduler"},
            {"containers", {{{"name", "main"}, {"resources", {{"limits", limits}}}}}}}}};
}

class ReviewResourcesTest : public testing::Test {
 protected:
  json Answer(const json& pod, const json& before = json()) {
    const json review = {{"request",
                          {{"uid", "u-1"},
                           {"operation", before.is_null() ? "CREATE" : "UPDATE"},
                           {"namespace", "team"},
                           {"object", pod},
                           {"oldObject", before}}}};
    return Review(review, cluster_, options_)["response"];
  }
  std::string WhyRefused(const json& pod, const json& before = json()) {
    const json response = Answer(pod, before);
    return response["allowed"] == false ? response["status"]["message"] : "";
  }
  // The pod as it is then.
  json Judged(const json& pod) {
    const json response = Answer(pod);
    EXPECT_EQ(response["allowed"], true) << response;
    warnings_ = response.value("warnings", json::array());
    if (!response.contains("patch")) return pod;
    const std::string text = response["patch"];
    std::string bytes(text.size(), '\0');
    EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                    reinterpret_cast<const unsigned char*>(text.data()),
                    static_cast<int>(text.size()));
    return pod.patch(json::parse(bytes.substr(0, bytes.rfind(']') + 1)));
  }
  static json LimitsOf(const json& pod, size_t container = 0) {
    const json& resources = pod["spec"]["containers"][container]["resources"];
    EXPECT_EQ(resources["limits"], resources["requests"]);
    return resources["limits"];
  }

  PluginCluster cluster_;
  ReviewOptions options_;
  json warnings_;
};

TEST_F(ReviewResourcesTest, HamisNamesBecomeThePlugins) {
  const json pod = Judged(Pod({{"nvidia.com/gpu", "1"},
                               {"nvidia.com/gpumem", "3000"},
                               {"nvidia.com/gpucores", "30"},
                               {"nvidia.com/priority", "0"}},
                              {{"nvidia.com/use-gputype", "A100,V100"}}));
  EXPECT_EQ(LimitsOf(pod),
            json({{"prorata.dev/gpu-memory", "12"}, {"prorata.dev/gpu-compute", "30"}}));
  EXPECT_EQ(pod["spec"]["schedulerName"], "default-scheduler");
  const json& annotations = pod["metadata"]["annotations"];
  EXPECT_EQ(annotations["prorata.dev/priority"], "1");
  EXPECT_EQ(annotations["prorata.dev/gpu-model"], "A100,V100");
  EXPECT_EQ(annotations["prorata.dev/translated-from"], "HAMi");
}

TEST_F(ReviewResourcesTest, GaiaGpusNamesBecomeThePlugins) {
  const json pod =
      Judged(Pod({{"tencent.com/vcuda-core", "30"}, {"tencent.com/vcuda-memory", "12"}},
                 {{"tencent.com/vcuda-core-limit", "50"}}));
  EXPECT_EQ(LimitsOf(pod),
            json({{"prorata.dev/gpu-memory", "12"}, {"prorata.dev/gpu-compute", "30"}}));
  EXPECT_EQ(pod["metadata"]["annotations"]["prorata.dev/compute-limit"], "50");
  // Whole GPUs have all of their memory.
  EXPECT_EQ(LimitsOf(Judged(Pod({{"tencent.com/vcuda-core", "200"}}))),
            json({{"prorata.dev/gpu-memory", "128"}, {"prorata.dev/gpu-compute", "200"}}));
}

TEST_F(ReviewResourcesTest, ThePluginMayHaveGaiaGpusNames) {
  options_.names = {"tencent.com/vcuda-core", "tencent.com/vcuda-memory"};
  const json limits = {{"tencent.com/vcuda-core", "30"}, {"tencent.com/vcuda-memory", "12"}};
  const json pod = Judged(Pod(limits, {{"tencent.com/vcuda-core-limit", "50"}}));
  EXPECT_EQ(LimitsOf(pod), limits);
  EXPECT_EQ(pod["metadata"]["annotations"]["prorata.dev/compute-limit"], "50");
}

TEST_F(ReviewResourcesTest, KubeSharesLabelsBecomeThePluginsNames) {
  const json labels = {{"sharedgpu/gpu_request", "0.5"},  {"sharedgpu/gpu_limit", "0.8"},
                       {"sharedgpu/gpu_model", "A100"},   {"sharedgpu/priority", "10"},
                       {"sharedgpu/group_name", "train"}, {"sharedgpu/group_headcount", "4"},
                       {"sharedgpu/group_threshold", "1"}};
  const json pod = Judged(Pod(json::object(), json::object(), labels));
  EXPECT_EQ(LimitsOf(pod),
            json({{"prorata.dev/gpu-memory", "32"}, {"prorata.dev/gpu-compute", "50"}}));
  const json& annotations = pod["metadata"]["annotations"];
  EXPECT_EQ(annotations["prorata.dev/compute-limit"], "80");
  EXPECT_EQ(annotations["prorata.dev/weight"], "190");
  EXPECT_EQ(annotations["prorata.dev/gpu-model"], "A100");
  EXPECT_EQ(annotations["prorata.dev/group"], "train");
  EXPECT_EQ(annotations["prorata.dev/group-size"], "4");
  EXPECT_EQ(warnings_, json::array());
  // A copy of what runs, which a person may make.
  EXPECT_EQ(Judged(pod), pod);
}

TEST_F(ReviewResourcesTest, OwnAnnotationsBecomeLimits) {
  const json pod = Judged(Pod(json::object(), {{"prorata.dev/memory", "8Gi"},
                                               {"prorata.dev/compute", "30"},
                                               {"prorata.dev/weight", "300"}}));
  EXPECT_EQ(LimitsOf(pod),
            json({{"prorata.dev/gpu-memory", "32"}, {"prorata.dev/gpu-compute", "30"}}));
  EXPECT_EQ(pod["metadata"]["annotations"]["prorata.dev/weight"], "300");
}

TEST_F(ReviewResourcesTest, EachContainerHasItsOwn) {
  json pod = Pod({{"nvidia.com/gpumem", "1024"}, {"nvidia.com/priority", "0"}});
  pod["spec"]["containers"].push_back(
      {{"name", "other"}, {"resources", {{"limits", {{"nvidia.com/gpumem-percentage", "50"}}}}}});
  const json made = Judged(pod);
  EXPECT_EQ(LimitsOf(made, 0), json({{"prorata.dev/gpu-memory", "4"}}));
  EXPECT_EQ(LimitsOf(made, 1), json({{"prorata.dev/gpu-memory", "32"}}));
  EXPECT_EQ(made["metadata"]["annotations"]["prorata.dev/priority.main"], "1");
}

TEST_F(ReviewResourcesTest, WhatThePluginCannotGiveIsRefused) {
  json pair = Pod(json::object(), {{"prorata.dev/memory", "8Gi"}});
  pair["spec"]["containers"].push_back({{"name", "other"}});
  EXPECT_EQ(WhyRefused(pair),
            "the pod asks for one part of a GPU for its 2 containers, and in a cluster without DRA "
            "each has a part of its own; ask for it in the containers' limits");
  EXPECT_EQ(WhyRefused(Pod({{"nvidia.com/gpu", "2"}, {"nvidia.com/gpumem", "1024"}})),
            "container 'main' asks for parts of 2 GPUs, and in a cluster without DRA it can have a "
            "part of one, or several whole ones (100 hundredths of each)");
  EXPECT_EQ(WhyRefused(Pod({{"nvidia.com/gpumem", "20480"}})),
            "the pod asks for 20 GiB of a GPU's memory, and the cluster's largest GPU has 16 GiB");
  const json part = Pod({{"nvidia.com/gpumem-percentage", "30"}});
  cluster_.sizes = {16 * kGiB, 80 * kGiB};
  EXPECT_EQ(WhyRefused(part),
            "the pod asks for 30% of a GPU's memory, and the cluster has GPUs of 2 sizes; ask for "
            "an amount");
  cluster_.sizes = {};
  EXPECT_NE(WhyRefused(part).find("no GPU of prorata's by whose size"), std::string::npos);
}

TEST_F(ReviewResourcesTest, NamesOfBothAreRefusedWhereTheyDiffer) {
  EXPECT_EQ(WhyRefused(Pod({{"nvidia.com/gpumem", "1024"}, {"prorata.dev/gpu-memory", "8"}})),
            "container 'main' asks for 8 of prorata.dev/gpu-memory, and in the names of HAMi for 4 "
            "of it; keep one of the two");
}

TEST_F(ReviewResourcesTest, ThePluginsOwnNamesAreChecked) {
  const json own = {{"prorata.dev/gpu-memory", "8"}, {"prorata.dev/gpu-compute", "30"}};
  EXPECT_EQ(Judged(Pod(own)), Pod(own));
  const json options = {{"prorata.dev/weight", "300"}, {"prorata.dev/gpu-model", "A100"}};
  EXPECT_EQ(Judged(Pod(own, options)), Pod(own, options));
  EXPECT_NE(WhyRefused(Pod({{"prorata.dev/gpu-compute", "30"}})).find("without memory"),
            std::string::npos);
  EXPECT_NE(WhyRefused(Pod(own, {{"prorata.dev/weight", "none"}})).find("a whole number"),
            std::string::npos);
  EXPECT_NE(WhyRefused(Pod(own, {{"prorata.dev/gpu-model", ""}})).find("names with commas"),
            std::string::npos);
  EXPECT_NE(WhyRefused(Pod(own, {{"prorata.dev/group", "g"}})).find("go together"),
            std::string::npos);
  json privileged = Pod(own);
  privileged["spec"]["containers"][0]["securityContext"] = {{"privileged", true}};
  EXPECT_NE(WhyRefused(privileged).find("privileged"), std::string::npos);
  // Later, too.
  EXPECT_NE(WhyRefused(Pod(own, {{"prorata.dev/weight", "0"}}), Pod(own)).find("from 1 to"),
            std::string::npos);
  EXPECT_EQ(WhyRefused(Pod(own, {{"prorata.dev/weight", "50"}}), Pod(own)), "");
}

TEST_F(ReviewResourcesTest, AnnotationsStandInForNvidiasResource) {
  const json annotations = {{"prorata.dev/memory", "8Gi"}, {"prorata.dev/compute", "25"}};
  json pod = Pod({{"nvidia.com/gpu.shared", "1"}}, annotations);
  pod["spec"]["containers"].push_back({{"name", "log"}});
  const json judged = Judged(pod);
  EXPECT_EQ(LimitsOf(judged),
            json({{"prorata.dev/gpu-memory", "32"}, {"prorata.dev/gpu-compute", "25"}}));
  EXPECT_FALSE(judged["spec"]["containers"][1].contains("resources"));
  // Both names in one container: it is one container.
  pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1";
  EXPECT_EQ(LimitsOf(Judged(pod)), LimitsOf(judged));
  EXPECT_NE(WhyRefused(Pod({{"prorata.dev/gpu-memory", "8"}, {"nvidia.com/gpu", "1"}}))
                .find("has a share and asks for nvidia.com/gpu"),
            std::string::npos);
}

TEST_F(ReviewResourcesTest, WhichGpusAPodHasIsTheExtendersWord) {
  const json own = {{"prorata.dev/gpu-memory", "8"}};
  const json given = {{"prorata.dev/assigned-gpus", R"({"main": ["GPU-1"]})"}};
  EXPECT_EQ(Judged(Pod(own, given)), Pod(own));
  EXPECT_NE(WhyRefused(Pod(own, given), Pod(own)).find("cannot be changed"), std::string::npos);
  EXPECT_NE(WhyRefused(Pod(own), Pod(own, given)).find("cannot be changed"), std::string::npos);
  json labelled = given;
  labelled["prorata.dev/weight"] = "50";
  EXPECT_EQ(WhyRefused(Pod(own, labelled), Pod(own, given)), "");
}

TEST_F(ReviewResourcesTest, PodsWithoutGpusAreLeftAlone) {
  const json pod = Pod({{"cpu", "1"}, {"nvidia.com/gpu", "1"}}, {{"prorata.dev/other", "x"}});
  EXPECT_EQ(Judged(pod), pod);
}

}  // namespace
}  // namespace prorata::kubernetes
