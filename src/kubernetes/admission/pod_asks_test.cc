#include "kubernetes/admission/pod_asks.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

const Systems kAll(std::begin(kSystems), std::end(kSystems));

json Container(const std::string& name, const json& limits) {
  return {{"name", name}, {"resources", {{"limits", limits}}}};
}

json PodWith(const std::vector<json>& containers, const json& annotations = json::object(),
             const json& labels = json::object()) {
  return {{"metadata", {{"name", "p"}, {"labels", labels}, {"annotations", annotations}}},
          {"spec", {{"containers", containers}}}};
}

json KubeSharePod(const json& labels) {
  return PodWith({Container("main", json::object())}, json::object(), labels);
}

PodAsks Asks(const json& pod) {
  auto asks = ReadAsks(pod, kAll);
  EXPECT_TRUE(asks) << asks.error().message;
  return asks.value_or(PodAsks{});
}

std::string WhyNoAsk(const json& pod) {
  const auto asks = ReadAsks(pod, kAll);
  return asks ? "" : asks.error().message;
}

TEST(PodAsks, OfAPodWithoutGpusAreNone) {
  EXPECT_TRUE(Asks(PodWith({Container("main", {{"cpu", "2"}})})).asks.empty());
  // A whole GPU of NVIDIA's device plugin.
  EXPECT_TRUE(Asks(PodWith({Container("main", {{"nvidia.com/gpu", "1"}})})).asks.empty());
}

TEST(PodAsks, OfKubeShare) {
  const PodAsks asks = Asks(KubeSharePod({{"sharedgpu/gpu_request", "0.5"},
                                          {"sharedgpu/gpu_limit", "0.8"},
                                          {"sharedgpu/gpu_mem", "3145728000"},
                                          {"sharedgpu/gpu_model", "Tesla-V100"},
                                          {"sharedgpu/priority", "10"},
                                          {"sharedgpu/group_name", "g"}}));
  EXPECT_EQ(asks.system, "KubeShare");
  ASSERT_EQ(asks.asks.size(), 1u);
  const GpuAsk& ask = asks.asks[0];
  EXPECT_EQ(ask.entry, "prorata");
  EXPECT_EQ(ask.containers, std::vector<std::string>{"main"});
  EXPECT_EQ(ask.share.compute_percent, 50u);
  EXPECT_EQ(ask.share.compute_limit_percent, 80u);
  EXPECT_EQ(ask.share.memory_bytes, 3 * kGiB);  // 3000 MiB, rounded up to 256
  EXPECT_EQ(ask.share.weight, 190u);
  EXPECT_EQ(ask.choice, (GpuChoice{{{"Tesla-V100"}, {}}, {}}));
  EXPECT_EQ(asks.group, std::nullopt);
  EXPECT_EQ(asks.warnings,
            std::vector<std::string>{
                "sharedgpu/group_name has no effect without sharedgpu/group_headcount, a number of "
                "pods, and sharedgpu/group_threshold, a part of them above 0 and up to 1"});
}

TEST(PodAsks, OfKubeShareHaveAGroup) {
  const auto size_of = [](const char* headcount, const char* threshold) {
    const PodAsks asks = Asks(KubeSharePod({{"sharedgpu/gpu_request", "0.5"},
                                            {"sharedgpu/group_name", "g"},
                                            {"sharedgpu/group_headcount", headcount},
                                            {"sharedgpu/group_threshold", threshold}}));
    return asks.group && asks.group->name == "g" ? asks.group->size : "";
  };
  EXPECT_EQ(size_of("5", "1.0"), "5");
  EXPECT_EQ(size_of("5", "0.5"), "3");
  EXPECT_EQ(size_of("5", "0.1"), "1");
  EXPECT_EQ(size_of("1", "0.1"), "1");
  for (const char* bad : {"0", "-1", "5x", "", "1e9"}) EXPECT_EQ(size_of(bad, "1"), "") << bad;
  for (const char* bad : {"0", "1.5", "-0.5", "half"}) EXPECT_EQ(size_of("5", bad), "") << bad;
}

TEST(PodAsks, OfKubeShareWithoutMemoryAreThatPartOfTheGpus) {
  const PodAsks asks =
      Asks(KubeSharePod({{"sharedgpu/gpu_request", "0.3"}, {"sharedgpu/gpu_limit", "1.0"}}));
  EXPECT_EQ(asks.asks[0].memory_part, Fraction{300'000});
  EXPECT_EQ(asks.asks[0].share.compute_limit_percent, std::nullopt);
}

TEST(PodAsks, OfKubeShareAboveOneAreWholeGpus) {
  const PodAsks asks =
      Asks(KubeSharePod({{"sharedgpu/gpu_request", "2"}, {"sharedgpu/gpu_limit", "2.0"}}));
  EXPECT_EQ(asks.asks[0].gpus, 2u);
  EXPECT_EQ(asks.asks[0].share.compute_percent, 100u);
  EXPECT_EQ(asks.asks[0].share.memory_bytes, std::nullopt);
}

TEST(PodAsks, OfKubeShareVersionOne) {
  const PodAsks asks =
      Asks(PodWith({Container("main", json::object())}, {{"kubeshare/gpu_request", "0.5"},
                                                         {"kubeshare/gpu_limit", "1.0"},
                                                         {"kubeshare/gpu_mem", "1073741824"},
                                                         {"kubeshare/sched_affinity", "red"}}));
  EXPECT_EQ(asks.asks[0].share.memory_bytes, kGiB);
  EXPECT_EQ(asks.warnings.size(), 1u);
}

TEST(PodAsks, OfKubeShareThatContradictThemselves) {
  EXPECT_EQ(
      WhyNoAsk(KubeSharePod({{"sharedgpu/gpu_request", "0.5"}, {"sharedgpu/gpu_limit", "0.3"}})),
      "sharedgpu/gpu_limit, 0.3, is below sharedgpu/gpu_request, 0.5");
  EXPECT_EQ(WhyNoAsk(KubeSharePod({{"sharedgpu/gpu_request", "half"}})),
            "sharedgpu/gpu_request is 'half', and must be a part of a GPU such as 0.5, or a whole "
            "number of GPUs up to 16");
  for (const json& labels :
       {json{{"sharedgpu/gpu_request", "-0.5"}}, json{{"sharedgpu/gpu_limit", "0"}},
        json{{"sharedgpu/gpu_request", "1.5"}},
        json{{"sharedgpu/gpu_request", "2"}, {"sharedgpu/gpu_limit", "3"}},
        json{{"sharedgpu/gpu_request", "0.5"}, {"sharedgpu/gpu_limit", "2"}},
        json{{"sharedgpu/gpu_request", "0.5"}, {"sharedgpu/gpu_mem", "0"}},
        json{{"sharedgpu/gpu_request", "0.5"}, {"sharedgpu/gpu_mem", "4 GB"}},
        json{{"sharedgpu/gpu_request", "0.5"}, {"sharedgpu/priority", "x"}}}) {
    EXPECT_NE(WhyNoAsk(KubeSharePod(labels)), "") << labels;
  }
}

TEST(PodAsks, OfGaiaGpu) {
  const json resources = {{"tencent.com/vcuda-core", "30"}, {"tencent.com/vcuda-memory", "32"}};
  const PodAsks hard = Asks(PodWith(
      {Container("a", resources), Container("b", {{"cpu", "1"}}), Container("c", resources)}));
  EXPECT_EQ(hard.system, "GaiaGPU");
  ASSERT_EQ(hard.asks.size(), 2u);
  EXPECT_EQ(hard.asks[1].entry, "prorata-c");
  EXPECT_EQ(hard.asks[0].share.memory_bytes, 8 * kGiB);
  EXPECT_EQ(hard.asks[0].share.compute_percent, 30u);
  EXPECT_EQ(hard.asks[0].share.compute_limit_percent, 30u);
  const PodAsks elastic =
      Asks(PodWith({Container("a", resources)}, {{"tencent.com/vcuda-core-limit", "60"}}));
  EXPECT_EQ(elastic.asks[0].share.compute_limit_percent, 60u);
  const PodAsks whole = Asks(PodWith(
      {Container("a", {{"tencent.com/vcuda-core", "200"}, {"tencent.com/vcuda-memory", "60"}})}));
  EXPECT_EQ(whole.asks[0].gpus, 2u);
  EXPECT_EQ(whole.asks[0].share.memory_bytes, std::nullopt);
}

TEST(PodAsks, OfGaiaGpuThatContradictThemselves) {
  const auto pod = [](const json& limits, const json& annotations = json::object()) {
    return PodWith({Container("main", limits)}, annotations);
  };
  EXPECT_EQ(WhyNoAsk(pod({{"tencent.com/vcuda-core", "150"}})),
            "container 'main' asks for 150 of tencent.com/vcuda-core, which is neither below 100 "
            "nor a multiple of 100");
  EXPECT_EQ(WhyNoAsk(pod({{"tencent.com/vcuda-memory", "8"}})),
            "container 'main' asks for tencent.com/vcuda-memory and for no "
            "tencent.com/vcuda-core; add it (hundredths of a GPU)");
  EXPECT_NE(WhyNoAsk(pod({{"tencent.com/vcuda-core", "30"}})), "");
  for (const char* value : {"0", "-1", "some", "1.5"}) {
    EXPECT_NE(WhyNoAsk(pod({{"tencent.com/vcuda-core", value}, {"tencent.com/vcuda-memory", "8"}})),
              "")
        << value;
  }
  EXPECT_NE(WhyNoAsk(pod({{"tencent.com/vcuda-core", "30"}, {"tencent.com/vcuda-memory", "8"}},
                         {{"tencent.com/vcuda-core-limit", "20"}})),
            "");
}

TEST(PodAsks, OfHami) {
  json container = Container("main", {{"nvidia.com/gpu", "2"},
                                      {"nvidia.com/gpumem", "3000"},
                                      {"nvidia.com/gpucores", "30"},
                                      {"nvidia.com/priority", "0"}});
  const PodAsks asks = Asks(PodWith({container}, {{"nvidia.com/use-gputype", "A100,V100"},
                                                  {"nvidia.com/nouse-gpuuuid", "GPU-1"},
                                                  {"nvidia.com/numa-bind", "true"}}));
  EXPECT_EQ(asks.system, "HAMi");
  const GpuAsk& ask = asks.asks[0];
  EXPECT_EQ(ask.gpus, 2u);
  EXPECT_EQ(ask.share.memory_bytes, 3 * kGiB);
  EXPECT_EQ(ask.share.compute_percent, 30u);
  EXPECT_EQ(ask.share.compute_limit_percent, std::nullopt);
  EXPECT_EQ(ask.share.priority, 1);
  EXPECT_EQ(ask.choice, (GpuChoice{{{"A100", "V100"}, {}}, {{}, {"GPU-1"}}}));
  EXPECT_EQ(asks.warnings.size(), 1u);
  container["env"] = {{{"name", "GPU_CORE_UTILIZATION_POLICY"}, {"value", "force"}}};
  EXPECT_EQ(Asks(PodWith({container})).asks[0].share.compute_limit_percent, 30u);
}

TEST(PodAsks, OfHamiWithoutACountAreOneGpu) {
  const PodAsks part = Asks(PodWith({Container("main", {{"nvidia.com/gpumem-percentage", 50}})}));
  EXPECT_EQ(part.asks[0].gpus, 1u);
  EXPECT_EQ(part.asks[0].memory_part, Fraction{500'000});
  const PodAsks all = Asks(PodWith({Container("main", {{"nvidia.com/gpumem-percentage", "100"}})}));
  EXPECT_EQ(all.asks[0].memory_part, std::nullopt);
}

TEST(PodAsks, OfHamiThatContradictThemselves) {
  EXPECT_EQ(WhyNoAsk(PodWith({Container(
                "main", {{"nvidia.com/gpumem", "1000"}, {"nvidia.com/gpumem-percentage", "50"}})})),
            "container 'main' asks for both nvidia.com/gpumem and nvidia.com/gpumem-percentage; "
            "remove one of them");
  EXPECT_EQ(WhyNoAsk(PodWith({Container("main", {{"nvidia.com/gpucores", "101"}})})),
            "container 'main' asks for 101 of nvidia.com/gpucores, which must be a whole number "
            "from 0 to 100 (hundredths of a GPU's time)");
  EXPECT_NE(WhyNoAsk(PodWith({Container("main", {{"nvidia.com/gpumem", "0"}})})), "");
  EXPECT_NE(WhyNoAsk(PodWith({Container("main", {{"nvidia.com/gpumem", "1000"}})},
                             {{"nvidia.com/vgpu-mode", "mig"}})),
            "");
}

TEST(PodAsks, OfOwnResources) {
  const PodAsks asks = Asks(PodWith(
      {Container("main", {{"prorata.dev/gpu-memory", "32"}, {"prorata.dev/gpu-compute", "30"}})}));
  EXPECT_EQ(asks.asks[0].share.memory_bytes, 8 * kGiB);
  EXPECT_EQ(asks.asks[0].share.compute_percent, 30u);
  EXPECT_NE(WhyNoAsk(PodWith({Container("main", {{"prorata.dev/gpu-compute", "200"}})})), "");
}

TEST(PodAsks, OfTwoSystemsAreRefused) {
  json pod = PodWith({Container("main", {{"nvidia.com/gpumem", "1000"}})}, json::object(),
                     {{"sharedgpu/gpu_request", "0.5"}});
  EXPECT_EQ(WhyNoAsk(pod),
            "the pod asks for parts of GPUs in the names of both KubeShare and HAMi; keep those "
            "of one of them");
  EXPECT_EQ(ReadAsks(pod, {"hami"})->system, "HAMi");
  EXPECT_TRUE(ReadAsks(pod, {})->asks.empty());
}

TEST(PodAsks, OfWhatIsNoPodAreRefused) {
  for (const char* text : {"{}", R"({"spec":7})", R"({"spec":{"containers":[7]}})",
                           R"({"metadata":{"labels":{"sharedgpu/gpu_request":"1"}},"spec":[]})"}) {
    (void)ReadAsks(json::parse(text), kAll);  // an error or nothing, and no exception
  }
}

}  // namespace
}  // namespace prorata::kubernetes
