#include "kubernetes/pods/pod_group.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

Result<std::optional<PodGroup>> Of(const json& annotations) {
  return GroupOf({{"metadata", {{"namespace", "team"}, {"annotations", annotations}}}});
}

TEST(PodGroup, IsOfItsNamespace) {
  const auto group = Of({{kGroupAnnotation, "train"}, {kGroupSizeAnnotation, "4"}});
  ASSERT_TRUE(group && *group);
  EXPECT_EQ((*group)->name, "team/train");
  EXPECT_EQ((*group)->size, 4u);
  EXPECT_FALSE(*Of(json::object()));
}

TEST(PodGroup, HalfOfItIsAnError) {
  EXPECT_EQ(Of({{kGroupAnnotation, "train"}}).error().message,
            "the annotations prorata.dev/group and prorata.dev/group-size go together");
  EXPECT_FALSE(Of({{kGroupSizeAnnotation, "4"}}));
  EXPECT_FALSE(Of({{kGroupAnnotation, ""}, {kGroupSizeAnnotation, "4"}}));
  for (const char* size : {"0", "-1", "1001", "4x", "", "four"}) {
    const auto group = Of({{kGroupAnnotation, "train"}, {kGroupSizeAnnotation, size}});
    ASSERT_FALSE(group) << size;
    EXPECT_NE(group.error().message.find("is '" + std::string(size) + "'"), std::string::npos);
  }
}

}  // namespace
}  // namespace prorata::kubernetes
