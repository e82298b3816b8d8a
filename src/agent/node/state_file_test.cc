#include "agent/node/state_file.h"

#include <gtest/gtest.h>

namespace prorata::agent {
namespace {

// As an agent wrote it that knew owners and files apart.
constexpr char kBefore[] = R"({"version": 1, "shares": [
  {"name": "a", "owner_uid": 5, "owner": {"pid": 12, "start_ticks": 34}, "created_unix_s": 1,
   "ended": false, "resource_config": "", "devices": [
     {"uuid": "GPU-1", "memory_bytes": 10, "request_ppm": 1, "limit_ppm": 2, "weight": 3}]},
  {"name": "b", "owner_uid": 5, "owner": {"pid": 0, "start_ticks": 0}, "created_unix_s": 1,
   "ended": false, "resource_config": "/etc/x", "devices": [
     {"uuid": "GPU-1", "memory_bytes": 10, "request_ppm": 1, "limit_ppm": 2, "weight": 3}]}]})";

TEST(StateFileTest, AStateOfBeforeIsUnderstood) {
  const auto state = DecodeState(kBefore);
  ASSERT_TRUE(state) << state.error().message;
  const ShareLife& first = state->shares[0].config.life;
  ASSERT_NE(first.process(), nullptr);
  EXPECT_EQ(*first.process(), (ProcessId{12, 34}));
  ASSERT_NE(state->shares[1].config.life.file(), nullptr);
  EXPECT_EQ(*state->shares[1].config.life.file(), "/etc/x");
}

TEST(StateFileTest, WhatIsWrittenIsRead) {
  auto state = DecodeState(kBefore);
  ASSERT_TRUE(state);
  SavedShare& share = state->shares[0];
  share.config.life = ShareLife::OfToken("word");
  share.config.any_container = true;
  share.container = Container{{"podman", "id", "", "/libpod_parent/libpod-id"}, "box"};
  const auto again = DecodeState(EncodeState(*state));
  ASSERT_TRUE(again) << again.error().message;
  ASSERT_NE(again->shares[0].config.life.token(), nullptr);
  EXPECT_EQ(*again->shares[0].config.life.token(), "word");
  EXPECT_TRUE(again->shares[0].config.any_container);
  ASSERT_TRUE(again->shares[0].container);
  EXPECT_EQ(again->shares[0].container->group, share.container->group);
  EXPECT_EQ(again->shares[0].container->name, "box");
  EXPECT_FALSE(again->shares[1].container);
  EXPECT_FALSE(again->shares[1].config.any_container);
}

// Before there were requests.
TEST(StateFileTest, AGuaranteedShareHadItsLimitSetAsideAnElasticOneNothing) {
  const std::string device =
      R"("memory_bytes": 10, "request_ppm": 1, "limit_ppm": 2, "weight": 3})";
  const auto state = DecodeState(
      R"({"version": 1, "overcommit": {"GPU-1": 1.5}, "shares": [
  {"name": "a", "owner_uid": 5, "life": {"token": "x"}, "created_unix_s": 1, "ended": false,
   "guaranteed": true, "devices": [{"uuid": "GPU-1", )" +
      device + R"(, {"uuid": "GPU-2", )" + device + R"(]},
  {"name": "b", "owner_uid": 5, "life": {"token": "x"}, "created_unix_s": 1, "ended": false,
   "guaranteed": false, "devices": [{"uuid": "GPU-1", )" +
      device + R"(, {"uuid": "GPU-2", )" + device + "]}]}");
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ(state->shares[0].config.devices[0].memory_request_bytes, 10u);
  EXPECT_EQ(state->shares[0].config.devices[1].memory_request_bytes, 10u);
  EXPECT_EQ(state->shares[1].config.devices[0].memory_request_bytes, 0u);
  EXPECT_EQ(state->shares[1].config.devices[1].memory_request_bytes, 10u) << "not overcommitted";
  // From now on as it is written, whatever the ratio; never more than the limit.
  SavedState saved = *state;
  saved.shares[0].config.devices[0].memory_request_bytes = 4;
  saved.shares[1].config.devices[0].memory_request_bytes = 11;
  const auto again = DecodeState(EncodeState(saved));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->shares[0].config.devices[0].memory_request_bytes, 4u);
  EXPECT_EQ(again->shares[1].config.devices[0].memory_request_bytes, 10u);
}

TEST(StateFileTest, OfAnotherVersionIsNotDamaged) {
  EXPECT_EQ(DecodeState(R"({"version": 99, "shares": []})").error().code, "state");
  for (const char* text : {"", "{", "[]", R"({"version": "x"})", R"({"version": 1})",
                           R"({"version": 1, "shares": [{"name": "a"}]})"}) {
    const auto state = DecodeState(text);
    ASSERT_FALSE(state) << text;
    EXPECT_EQ(state.error().code, "state_damaged") << text;
  }
}

}  // namespace
}  // namespace prorata::agent
