#include "kubernetes/pods/gpu_choice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr char kA100[] = "NVIDIA A100-SXM4-80GB";
constexpr char kUuid[] = "GPU-1";

json PodAnnotated(const json& annotations) {
  return {{"metadata", {{"annotations", annotations}}}};
}

GpuChoice ChoiceBy(const json& annotations) {
  const auto choice = GpuChoiceOf(PodAnnotated(annotations));
  EXPECT_TRUE(choice) << choice.error().message;
  return choice.value_or(GpuChoice{});
}

bool Allowed(const char* model, const char* by) {
  return ChoiceBy({{kGpuModelAnnotation, by}}).AllowsModel(model);
}

TEST(GpuChoice, WithoutAnnotationsIsAnyGpu) {
  EXPECT_TRUE(ChoiceBy(json::object()).Empty());
  EXPECT_TRUE(GpuChoice{}.AllowsModel(kA100));
  EXPECT_TRUE(GpuChoice{}.AllowsUuid(kUuid));
  EXPECT_TRUE(GpuChoiceOf(json::object())->Empty());
}

TEST(GpuChoice, AModelIsAPartOfItsName) {
  EXPECT_TRUE(Allowed(kA100, "A100"));
  EXPECT_TRUE(Allowed(kA100, "a100 sxm4"));
  EXPECT_TRUE(Allowed(kA100, "NVIDIA-A100-SXM4-80GB"));  // a label's value has no spaces
  EXPECT_TRUE(Allowed(kA100, "V100, A100"));
  EXPECT_FALSE(Allowed(kA100, "V100,H100"));
}

TEST(GpuChoice, WhatStandsBehindAMarkIsNeverTaken) {
  EXPECT_FALSE(Allowed(kA100, "!a100"));
  EXPECT_TRUE(Allowed(kA100, "!V100,!H100"));
  EXPECT_FALSE(Allowed(kA100, "A100,!80GB"));
  EXPECT_TRUE(Allowed("NVIDIA A100 40GB", "A100,!80GB"));
}

TEST(GpuChoice, AUuidIsWhole) {
  EXPECT_TRUE(ChoiceBy({{kGpuUuidAnnotation, "GPU-2,GPU-1"}}).AllowsUuid(kUuid));
  EXPECT_FALSE(ChoiceBy({{kGpuUuidAnnotation, "GPU-"}}).AllowsUuid(kUuid));
  EXPECT_FALSE(ChoiceBy({{kGpuUuidAnnotation, "!GPU-1"}}).AllowsUuid(kUuid));
}

TEST(GpuChoice, EmptyNamesAreRefused) {
  for (const char* text : {"", ",", "A100,", "!", "A100,,H100", " "}) {
    const auto choice = GpuChoiceOf(PodAnnotated({{kGpuModelAnnotation, text}}));
    ASSERT_FALSE(choice) << text;
    EXPECT_EQ(choice.error().code, "bad_annotation");
    EXPECT_NE(choice.error().message.find("such as A100,H100 or !V100"), std::string::npos);
  }
}

TEST(GpuChoice, IsWrittenAsItIsRead) {
  const GpuChoice choice = {{{"A100", "H100"}, {"PCIe"}}, {{}, {"GPU-1"}}};
  json pod;
  WriteGpuChoice(choice, &pod);
  EXPECT_EQ(pod["metadata"]["annotations"][kGpuModelAnnotation], "A100,H100,!PCIe");
  EXPECT_EQ(*GpuChoiceOf(pod), choice);
  EXPECT_EQ(DescribeGpuChoice(choice),
            "of model A100 or H100, not of model PCIe, not of UUID GPU-1");
  json plain = {{"metadata", {{"name", "a"}}}};
  WriteGpuChoice({}, &plain);
  EXPECT_FALSE(plain["metadata"].contains("annotations"));
}

}  // namespace
}  // namespace prorata::kubernetes
