#include "kubernetes/pods/pod_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

const ResourceNames kNames;

json Asking(const std::string& name, const json& limits) {
  return {{"name", name}, {"resources", {{"limits", limits}}}};
}

json PodOf(const std::vector<json>& containers, const std::vector<json>& init = {}) {
  return {{"spec", {{"containers", containers}, {"initContainers", init}}}};
}

json Limits(const char* compute, const char* memory) {
  json limits = {{"cpu", "1"}};
  if (*compute != 0) limits[kNames.compute] = compute;
  if (*memory != 0) limits[kNames.memory] = memory;
  return limits;
}

std::string Why(const json& pod) {
  const auto requests = GpuRequestsOf(pod, kNames);
  EXPECT_FALSE(requests);
  return requests ? "" : requests.error().message;
}

TEST(PodRequestTest, PartsAndWholeGpus) {
  const auto requests =
      GpuRequestsOf(PodOf({Asking("part", Limits("30", "32")), Asking("memory", Limits("", "4")),
                           Asking("whole", Limits("100", "64")),
                           Asking("two", Limits("200", "128")), json{{"name", "plain"}}}),
                    kNames);
  ASSERT_TRUE(requests) << requests.error().message;
  using Kind = ContainerKind;
  const std::vector<ContainerRequest> expected = {{"part", Kind::kMain, 1, 30, 32},
                                                  {"memory", Kind::kMain, 1, 0, 4},
                                                  {"whole", Kind::kMain, 1, 100, 64},
                                                  {"two", Kind::kMain, 2, 100, 64}};
  EXPECT_EQ(*requests, expected);
  EXPECT_EQ(DescribeRequest(expected[0]), "8 GiB and 30% of its time");
  EXPECT_EQ(DescribeRequest(expected[1]), "1 GiB");
}

TEST(PodRequestTest, APodWithoutGpusAsksForNothing) {
  EXPECT_TRUE(GpuRequestsOf(PodOf({json{{"name", "plain"}}}), kNames)->empty());
  EXPECT_TRUE(GpuRequestsOf(json::object(), kNames)->empty());
}

TEST(PodRequestTest, NamesOfOtherSystems) {
  const ResourceNames names = {"tencent.com/vcuda-core", "tencent.com/vcuda-memory"};
  const json limits = {{names.compute, "50"}, {names.memory, "8"}};
  const auto requests = GpuRequestsOf(PodOf({Asking("a", limits)}), names);
  ASSERT_TRUE(requests);
  EXPECT_EQ(requests->front(), (ContainerRequest{"a", ContainerKind::kMain, 1, 50, 8}));
}

TEST(PodRequestTest, WhatNoShareCanBe) {
  EXPECT_EQ(Why(PodOf({Asking("a", Limits("30", ""))})),
            "container 'a' asks for prorata.dev/gpu-compute: 30 without memory; add "
            "prorata.dev/gpu-memory to its limits, in units of 256 MiB");
  for (const char* compute : {"101", "150", "1700", "9223372036854775807"}) {
    EXPECT_NE(Why(PodOf({Asking("a", Limits(compute, "64"))})).find("write at most 100"),
              std::string::npos)
        << compute;
  }
  EXPECT_NE(Why(PodOf({Asking("a", Limits("200", "3"))})).find("cannot share evenly"),
            std::string::npos);
  EXPECT_NE(Why(json{{"spec", {{"containers", "none"}}}}).find("is no pod"), std::string::npos);
  EXPECT_NE(Why(PodOf({Asking("a", Limits("x", "3"))})).find("is no quantity"), std::string::npos);
}

TEST(PodRequestTest, AnInitContainerUsesWhatALaterOneGets) {
  json sidecar = Asking("sidecar", Limits("10", "8"));
  sidecar["restartPolicy"] = "Always";
  const auto requests = GpuRequestsOf(
      PodOf({Asking("main", Limits("30", "32"))}, {Asking("first", Limits("30", "4")), sidecar}),
      kNames);
  ASSERT_TRUE(requests) << requests.error().message;
  ASSERT_EQ(requests->size(), 3u);
  EXPECT_EQ((*requests)[0].kind, ContainerKind::kInit);
  EXPECT_EQ((*requests)[1].kind, ContainerKind::kSidecar);
  EXPECT_NE(Why(PodOf({Asking("main", Limits("30", "32"))}, {Asking("first", Limits("40", "4"))}))
                .find("container 'first' is an init container and asks for"),
            std::string::npos);
}

}  // namespace
}  // namespace prorata::kubernetes
