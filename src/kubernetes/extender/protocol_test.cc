#include "kubernetes/extender/protocol.h"

#include <gtest/gtest.h>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

TEST(ExtenderProtocolTest, Args) {
  const auto args = ParseExtenderArgs(
      R"({"Pod": {"metadata": {"uid": "u"}}, "Nodes": null, "NodeNames": ["a", "b"]})");
  ASSERT_TRUE(args) << args.error().message;
  EXPECT_EQ(args->uid, "u");
  EXPECT_EQ(args->nodes, (std::vector<std::string>{"a", "b"}));
  const auto nodes = ParseExtenderArgs(R"({"Pod": {"metadata": {"uid": "u"}}, "Nodes": {}})");
  EXPECT_NE(nodes.error().message.find("nodeCacheCapable: true"), std::string::npos);
  for (const char* body : {"", "[]", "{}", R"({"Pod": 3, "NodeNames": []})",
                           R"({"Pod": {"metadata": {"uid": "u"}}, "NodeNames": [3]})"}) {
    EXPECT_EQ(ParseExtenderArgs(body).error().code, "bad_args") << body;
  }
  const auto bind =
      ParseBindArgs(R"({"PodName": "p", "PodNamespace": "team", "PodUID": "u", "Node": "n"})");
  EXPECT_EQ(bind->name_space + bind->name + bind->uid + bind->node, "teampun");
  EXPECT_FALSE(ParseBindArgs(R"({"PodName": "p"})"));
}

TEST(ExtenderProtocolTest, Answers) {
  const std::vector<std::string> nodes = {"a", "b\"", "c"};
  const std::string full = "full", never = "never";
  FilterAnswer answer{nodes, {1}, {{0, &full}}, {{2, &never}}};
  EXPECT_EQ(json::parse(FormatFilterAnswer(answer)),
            json::parse(R"({"NodeNames": ["b\""], "FailedNodes": {"a": "full"},
                            "FailedAndUnresolvableNodes": {"c": "never"}, "Error": ""})"));
  const std::vector<int> scores = {0, 10, 3};
  EXPECT_EQ(json::parse(FormatPriorities(nodes, scores)),
            json::parse(R"([{"Host": "a", "Score": 0}, {"Host": "b\"", "Score": 10},
                            {"Host": "c", "Score": 3}])"));
  EXPECT_EQ(json::parse(FormatBindAnswer("no")), json::parse(R"({"Error": "no"})"));
}

}  // namespace
}  // namespace prorata::kubernetes
