#include "api/allowed_users.h"

#include <gtest/gtest.h>

#include "agent/config/resource_config.h"
#include "api/control.h"

namespace prorata::api {
namespace {

TEST(AllowedUsers, NobodyAllOrIds) {
  EXPECT_TRUE(ParseAllowedUsers("")->Nobody());
  EXPECT_FALSE(ParseAllowedUsers("")->Admits(0));
  EXPECT_TRUE(ParseAllowedUsers("all")->Admits(65534));
  const auto two = ParseAllowedUsers("1001,7,1001");
  ASSERT_TRUE(two.has_value());
  EXPECT_TRUE(two->Admits(7));
  EXPECT_TRUE(two->Admits(1001));
  EXPECT_FALSE(two->Admits(1000));
  EXPECT_EQ(FormatAllowedUsers(*two), "7,1001");
}

TEST(AllowedUsers, WhatIsNoneNamesItself) {
  for (const char* bad :
       {"alice", "-1", "1,,2", ",", "1,", "4294967295", "4294967296", "1 2", "\n\x1b"}) {
    const auto parsed = ParseAllowedUsers(bad);
    ASSERT_FALSE(parsed.has_value()) << bad;
    EXPECT_NE(parsed.error().message.find("is no user id"), std::string::npos);
  }
  std::string many = "0";
  for (int i = 1; i <= 64; ++i) many += "," + std::to_string(i);
  EXPECT_FALSE(ParseAllowedUsers(many).has_value());
}

TEST(AllowedUsers, OfARequestAndOfALineOfAFile) {
  ControlRequest request;
  request.op = ControlOp::kCreateShare;
  request.share.allow_users = {.users = {7, 1001}};
  const auto read = DecodeRequest(EncodeRequest(request));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->share.allow_users, request.share.allow_users);
  EXPECT_FALSE(
      DecodeRequest(R"({"op": "create_share", "share": {"allow_users": "me"}})").has_value());

  const auto clients = agent::ParseResourceConfig("f", "2\na 0 1 4096 users=all\nb 0 1 4096\n");
  ASSERT_TRUE(clients.has_value()) << clients.error().message;
  EXPECT_TRUE((*clients)[0].allow_users.all);
  EXPECT_TRUE((*clients)[1].allow_users.Nobody());
  for (const char* bad : {"users=", "users=me", "others", "users=1 users=2"}) {
    const auto refused =
        agent::ParseResourceConfig("f", "1\na 0 1 4096 " + std::string(bad) + "\n");
    ASSERT_FALSE(refused.has_value()) << bad;
    EXPECT_EQ(refused.error().message.find("f:2: "), 0u) << refused.error().message;
  }
}

}  // namespace
}  // namespace prorata::api
