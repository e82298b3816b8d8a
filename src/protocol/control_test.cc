#include "protocol/control.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/bytes.h"

namespace prorata::protocol {
namespace {

std::vector<DeviceStatus> OneDevice() {
  DeviceStatus device;
  device.uuid = "GPU-00000000-0000-0000-0000-000000000001";
  device.name = "Simulated";
  device.total_bytes = 8 * kGiB;
  device.promised_bytes = 5 * kGiB;
  device.foreign_bytes = 1 * kGiB;
  device.promised_request = {600'000};
  device.shares = 2;
  return {device};
}

std::string CodeFor(const ShareSpec& spec) {
  const std::vector<std::string> names = {"taken"};
  const auto result = ValidateShare(spec, OneDevice(), names);
  return result ? "" : result.error().code;
}

TEST(ValidateShare, SettlesWhatIsLeftOpen) {
  const auto valid = ValidateShare({}, OneDevice(), {});
  ASSERT_TRUE(valid.has_value()) << valid.error().message;
  EXPECT_EQ(valid->memory_bytes, 2 * kGiB);
  EXPECT_EQ(valid->device, 0u);
}

TEST(ValidateShare, RefusesWhatCannotBeHad) {
  EXPECT_EQ(CodeFor({.memory_bytes = 2 * kGiB, .compute_request = {400'000}}), "");
  EXPECT_EQ(CodeFor({.memory_bytes = 2 * kGiB + 1}), "memory_exceeded");
  EXPECT_EQ(CodeFor({.compute_request = {400'001}}), "request_exceeded");
  EXPECT_EQ(CodeFor({.compute_request = {300'000}, .compute_limit = {299'999}}),
            "limit_below_request");
  EXPECT_EQ(CodeFor({.compute_limit = {0}}), "bad_fraction");
  EXPECT_EQ(CodeFor({.name = "taken"}), "name_in_use");
  EXPECT_EQ(CodeFor({.gpu = "1"}), "unknown_gpu");
  EXPECT_EQ(CodeFor({.gpu = "GPU-00000000-0000-0000-0000-000000000001"}), "");
  EXPECT_EQ(CodeFor({.gpu = "0"}), "");
  EXPECT_EQ(CodeFor({.weight = 0}), "bad_weight");
}

TEST(ValidateShare, AnUnknownGpuListsTheKnownOnes) {
  const auto result = ValidateShare({.gpu = "7"}, OneDevice(), {});
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message.find("GPU-00000000-0000-0000-0000-000000000001"),
            std::string::npos);
}

TEST(ValidateShare, WithoutAGpuTheOneWhereItFits) {
  std::vector<DeviceStatus> devices = {OneDevice()[0], OneDevice()[0], OneDevice()[0]};
  devices[1].promised_bytes = 0;
  devices[1].promised_request = Fraction::One();
  devices[2].promised_bytes = 1 * kGiB;
  EXPECT_EQ(ValidateShare({.compute_request = {100'000}}, devices, {})->device, 2u);
  EXPECT_EQ(ValidateShare({}, devices, {})->device, 1u);
}

// The device's only other share holds 3 GiB and requests 0.4; this one 2 GiB and 0.2.
std::string CodeForChange(const ShareChange& change) {
  const ShareTerms now{2 * kGiB, {200'000}, {500'000}, 100};
  const auto result = ValidateChange(change, now, OneDevice()[0]);
  return result ? "" : result.error().code;
}

TEST(ValidateChange, WhatIsNotNamedStays) {
  const ShareTerms now{2 * kGiB, {200'000}, {500'000}, 70};
  const auto terms = ValidateChange({.memory_bytes = kGiB}, now, OneDevice()[0]);
  ASSERT_TRUE(terms.has_value());
  EXPECT_EQ(terms->memory_bytes, kGiB);
  EXPECT_EQ(terms->compute_request.ppm, 200'000u);
  EXPECT_EQ(terms->compute_limit.ppm, 500'000u);
  EXPECT_EQ(terms->weight, 70u);
}

TEST(ValidateChange, CountsTheShareItselfOut) {
  EXPECT_EQ(CodeForChange({.memory_bytes = 4 * kGiB}), "");
  EXPECT_EQ(CodeForChange({.memory_bytes = 4 * kGiB + 1}), "memory_exceeded");
  EXPECT_EQ(CodeForChange({.compute_request = Fraction{500'000}}), "");
  EXPECT_EQ(
      CodeForChange({.compute_request = Fraction{600'001}, .compute_limit = Fraction{1'000'000}}),
      "request_exceeded");
  EXPECT_EQ(CodeForChange({.compute_limit = Fraction{199'999}}), "limit_below_request");
  EXPECT_EQ(CodeForChange({.compute_limit = Fraction{0}}), "bad_fraction");
  EXPECT_EQ(CodeForChange({.weight = 0}), "bad_weight");
}

TEST(ValidateChange, LessIsAlwaysToBeHad) {
  DeviceStatus crowded = OneDevice()[0];
  crowded.foreign_bytes = 8 * kGiB;  // programs outside prorata took it all
  const ShareTerms now{2 * kGiB, {}, Fraction::One(), 100};
  EXPECT_TRUE(ValidateChange({.memory_bytes = kGiB}, now, crowded).has_value());
  EXPECT_FALSE(ValidateChange({.memory_bytes = 3 * kGiB}, now, crowded).has_value());
}

TEST(DecodeRequest, ReadsAChange) {
  ControlRequest request;
  request.op = ControlOp::kUpdateShare;
  request.name = "a/b";
  request.change = {.memory_bytes = kGiB, .compute_limit = Fraction{250'000}};
  const auto back = DecodeRequest(EncodeRequest(request));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(back->op, ControlOp::kUpdateShare);
  EXPECT_EQ(back->name, "a/b");
  EXPECT_EQ(back->change.memory_bytes, kGiB);
  EXPECT_EQ(back->change.compute_limit, Fraction{250'000});
  EXPECT_FALSE(back->change.compute_request || back->change.weight);
  for (const char* bad :
       {R"({"op":"update_share","name":"a"})", R"({"op":"update_share","change":{"weight":1}})",
        R"({"op":"update_share","name":"a","change":{}})",
        R"({"op":"update_share","name":"a","change":{"gpu":"0"}})",
        R"({"op":"update_share","name":"a","change":{"weight":-1}})",
        R"({"op":"update_share","name":"a","change":{"memory_bytes":0}})"}) {
    EXPECT_FALSE(DecodeRequest(bad).has_value()) << bad;
  }
}

TEST(ValidateShareName, AllowsNoPathTricks) {
  for (const char* good : {"a", "team/train.1", "a_b-c", "...", "x/..."}) {
    EXPECT_TRUE(ValidateShareName(good).has_value()) << good;
  }
  const std::string long_name(64, 'a');
  for (const char* bad : {"", ".", "..", "/a", "a/", "a//b", "a/../b", "a b", "-a", "a+b", "a\n",
                          "\xc3\xa9", long_name.c_str()}) {
    EXPECT_FALSE(ValidateShareName(bad).has_value()) << bad;
  }
  EXPECT_FALSE(ValidateShareName(std::string_view("a\0b", 3)).has_value());
  EXPECT_EQ(ShareFolder("team/train.1"), "team+train.1");
}

TEST(DecodeRequest, RoundTrips) {
  ControlRequest request{ControlOp::kCreateShare, {}, ""};
  request.share = {.name = "a/b",
                   .gpu = "0",
                   .memory_bytes = kGiB,
                   .compute_request = {300'000},
                   .compute_limit = {700'001},
                   .weight = 7};
  const auto read = DecodeRequest(EncodeRequest(request));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->op, ControlOp::kCreateShare);
  EXPECT_EQ(read->share.name, "a/b");
  EXPECT_EQ(read->share.memory_bytes, kGiB);
  EXPECT_EQ(read->share.compute_request.ppm, 300'000u);
  EXPECT_EQ(read->share.compute_limit.ppm, 700'001u);
  EXPECT_EQ(read->share.weight, 7u);
  EXPECT_EQ(DecodeRequest(EncodeRequest({ControlOp::kRemoveShare, {}, "x"}))->name, "x");
  const ControlRequest events{.op = ControlOp::kEvents,
                              .events = {.since = 5, .follow = true, .share = "s"}};
  const auto read_events = DecodeRequest(EncodeRequest(events));
  ASSERT_TRUE(read_events.has_value());
  EXPECT_EQ(read_events->op, ControlOp::kEvents);
  EXPECT_EQ(read_events->events.since, 5u);
  EXPECT_TRUE(read_events->events.follow);
  EXPECT_EQ(read_events->events.share, "s");
  EXPECT_FALSE(DecodeRequest(R"({"op":"events"})")->events.since.has_value());
}

TEST(DecodeRequest, RefusesTheRest) {
  for (const char* text : {"",
                           "x",
                           "[]",
                           "1",
                           "{}",
                           R"({"op":1})",
                           R"({"op":"fly"})",
                           R"({"op":"hello","x":1})",
                           R"({"op":"remove_share"})",
                           R"({"op":"remove_share","name":1})",
                           R"({"op":"create_share","share":[]})",
                           R"({"op":"create_share","share":{"memry":1}})",
                           R"({"op":"create_share","share":{"memory_bytes":0}})",
                           R"({"op":"create_share","share":{"memory_bytes":-1}})",
                           R"({"op":"create_share","share":{"memory_bytes":1.5}})",
                           R"({"op":"create_share","share":{"memory_bytes":"1GiB"}})",
                           R"({"op":"create_share","share":{"compute_request":1.5}})",
                           R"({"op":"create_share","share":{"compute_request":-0.1}})",
                           R"({"op":"create_share","share":{"compute_request":null}})",
                           R"({"op":"create_share","share":{"weight":0}})",
                           R"({"op":"events","since":-1})",
                           R"({"op":"events","since":"1"})",
                           R"({"op":"events","follow":1})",
                           R"({"op":"events","share":1})",
                           R"({"op":"events","name":"a"})",
                           "{\"op\":\"\xff\"}"}) {
    EXPECT_FALSE(DecodeRequest(text).has_value()) << text;
  }
  EXPECT_FALSE(DecodeRequest(std::string(100'000, '[')).has_value());
}

TEST(ControlJson, StatusRoundTrips) {
  ShareStatus share;
  share.name = "n";
  share.devices.emplace_back().compute_request = {333'333};
  share.members.push_back({42, "python3", 5, 6});
  const auto read = ShareFromJson(ToJson(share));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->devices.at(0).compute_request.ppm, 333'333u);
  EXPECT_EQ(read->members.at(0).command, "python3");
  EXPECT_FALSE(ShareFromJson(nlohmann::json::object()).has_value());
  EXPECT_EQ(ErrorOfReply(ToJson(Error{"c", "m"}))->message, "m");
  EXPECT_FALSE(ErrorOfReply(ToJson(share)).has_value());
}

// What the fuzzer does for longer: bytes near to a request, none of which may end badly.
TEST(DecodeRequest, SurvivesMutatedRequests) {
  const std::string seed = EncodeRequest({ControlOp::kCreateShare, {.name = "n", .gpu = "0"}, ""});
  for (uint32_t run = 1; run <= 20'000; ++run) {
    std::mt19937 random(run);
    std::string text = seed;
    for (uint32_t i = 0; i < 1 + random() % 8; ++i) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    const auto result = DecodeRequest(text.substr(0, random() % (text.size() + 1)));
    if (!result) {
      EXPECT_FALSE(result.error().message.empty());
    }
  }
}

}  // namespace
}  // namespace prorata::protocol
