#include "api/gang.h"
#include "agent/share/validate_share.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/control.h"
#include "base/bytes.h"

namespace prorata::agent {
namespace {

using namespace api;

TEST(Gang, IsReadAsItIsWritten) {
  for (const char* text : {"auto", "always", "never"}) {
    const auto gang = ParseGang(text);
    ASSERT_TRUE(gang.has_value()) << text;
    EXPECT_EQ(FormatGang(*gang), text);
  }
  for (const char* text : {"", "Always", "yes", "always ", "true"}) {
    EXPECT_EQ(ParseGang(text).error().code, "bad_gang") << text;
  }
}

TEST(Gang, TravelsInRequestsAndReplies) {
  ControlRequest create{.op = ControlOp::kCreateShare};
  create.share.gang = Gang::kAlways;
  auto decoded = DecodeRequest(EncodeRequest(create));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(decoded->share.gang, Gang::kAlways);

  ControlRequest update{.op = ControlOp::kUpdateShare, .name = "x"};
  update.change.gang = Gang::kNever;
  EXPECT_FALSE(update.change.Empty());
  decoded = DecodeRequest(EncodeRequest(update));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(decoded->change.gang, Gang::kNever);

  ShareStatus share;
  share.gang = Gang::kNever;
  share.runs_as_gang = true;
  nlohmann::json json = ToJson(share);
  auto read = ShareFromJson(json);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->gang, Gang::kNever);
  EXPECT_TRUE(read->runs_as_gang);
  json.erase("gang");  // of an agent that did not know of it
  json.erase("runs_as_gang");
  read = ShareFromJson(json);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->gang, Gang::kAuto);

  for (const char* text :
       {R"({"op":"create_share","share":{"gang":"sometimes"}})",
        R"({"op":"create_share","share":{"gang":true}})",
        R"({"op":"update_share","name":"x","change":{"gang":7}})",
        R"({"op":"update_share","name":"x","change":{"on":[{"gpu":"0","gang":"auto"}]}})"}) {
    EXPECT_FALSE(DecodeRequest(text).has_value()) << text;
  }
}

TEST(Gang, AlwaysNeedsSeveralGpus) {
  std::vector<DeviceStatus> devices(2);
  for (uint32_t i = 0; i < 2; ++i) {
    devices[i].index = i;
    devices[i].uuid = "GPU-" + std::to_string(i);
    devices[i].total_bytes = 8 * kGiB;
  }
  ShareSpec spec{.memory = kGiB, .gang = Gang::kAlways};
  EXPECT_EQ(ValidateShare(spec, devices, {}).error().code, "gang_of_one");
  spec.gpu_count = 2;
  EXPECT_TRUE(ValidateShare(spec, devices, {}).has_value());
  const std::vector<ShareTerms> now(2, ShareTerms{kGiB, {}, Fraction::One()});
  const ShareChange always{.gang = Gang::kAlways};
  EXPECT_TRUE(ValidateChange(always, now, devices).has_value());
  EXPECT_EQ(
      ValidateChange(always, std::span(now).first(1), std::span(devices).first(1)).error().code,
      "gang_of_one");
  const ShareChange never{.gang = Gang::kNever};
  EXPECT_TRUE(
      ValidateChange(never, std::span(now).first(1), std::span(devices).first(1)).has_value());
}

}  // namespace
}  // namespace prorata::agent
