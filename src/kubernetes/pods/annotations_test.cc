#include "kubernetes/pods/annotations.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

constexpr uint64_t kGib = uint64_t{1} << 30;

bool IsPods(std::string_view name) { return name.starts_with("pod"); }

api::DeviceStatus DeviceOf(const std::string& uuid, uint64_t bytes) {
  api::DeviceStatus device;
  device.uuid = uuid;
  device.name = "Model";
  device.total_bytes = bytes;
  return device;
}

api::ShareStatus AnnotatedShare(const std::string& name, const std::string& uuid, uint64_t bytes,
                                uint32_t ppm) {
  api::ShareStatus share;
  share.name = name;
  share.devices.resize(1);
  share.devices[0].uuid = uuid;
  share.devices[0].memory_request_bytes = bytes;
  share.devices[0].compute_request = Fraction{ppm};
  return share;
}

TEST(AnnotationsTest, GpusForPodsAreWhatOthersLeave) {
  std::vector<api::DeviceStatus> devices = {DeviceOf("A", 16 * kGib), DeviceOf("B", 16 * kGib),
                                            DeviceOf("C", 16 * kGib)};
  devices[1].foreign_bytes = kGib;
  devices[2].exclusive = "whole";
  const std::vector<api::ShareStatus> shares = {
      AnnotatedShare("pod-unit-0", "A", 8 * kGib, 500'000),
      AnnotatedShare("host", "B", 2 * kGib, 200'000)};
  const std::vector<NodeGpu> expected = {
      {"A", "Model", 64, 100, 64}, {"B", "Model", 52, 80, 64}, {"C", "Model", 0, 0, 64}};
  EXPECT_EQ(GpusForPods(devices, shares, &IsPods), expected);
  EXPECT_EQ(*ParseNodeGpus(FormatNodeGpus(expected)), expected);
  // As a plugin from before wrote it.
  EXPECT_EQ(*ParseNodeGpus(R"([{"uuid": "A", "model": "M", "memory": 8, "compute": 50}])"),
            (std::vector<NodeGpu>{{"A", "M", 8, 50, 0}}));
}

TEST(AnnotationsTest, WhatCannotBeRead) {
  for (const char* text : {"", "{", "[1]", R"([{"uuid": "A"}])", R"([{"uuid": 3, "model": "M",
       "memory": 1, "compute": 1}])"}) {
    EXPECT_FALSE(ParseNodeGpus(text)) << text;
  }
  for (const char* text : {"", "[]", R"({"main": "GPU"})", R"({"main": [1]})"}) {
    EXPECT_FALSE(ParseAssignedGpus(text)) << text;
  }
}

TEST(AnnotationsTest, AssignedGpus) {
  const AssignedGpus assigned = {{"main", {"A", "B"}}, {"side", {"A"}}};
  EXPECT_EQ(*ParseAssignedGpus(FormatAssignedGpus(assigned)), assigned);
  const nlohmann::json pod = {
      {"metadata", {{"annotations", {{kAssignedGpusAnnotation, FormatAssignedGpus(assigned)}}}}}};
  EXPECT_EQ(AnnotationOf(pod, kAssignedGpusAnnotation), FormatAssignedGpus(assigned));
  EXPECT_FALSE(AnnotationOf(pod, kNodeGpusAnnotation));
  EXPECT_FALSE(AnnotationOf(nlohmann::json::object(), kNodeGpusAnnotation));
}

}  // namespace
}  // namespace prorata::kubernetes
