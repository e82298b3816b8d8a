#include "api/control.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/bytes.h"

namespace prorata::api {
namespace {

std::vector<DeviceStatus> FourDevices() {
  std::vector<DeviceStatus> devices(4);
  for (uint32_t i = 0; i < 4; ++i) {
    devices[i].index = i;
    devices[i].uuid = "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(i);
    devices[i].total_bytes = 8 * kGiB;
    devices[i].links.assign(4, {LinkClass::kNode, 0});
  }
  devices[3].promised_bytes = 4 * kGiB;
  devices[3].promised_request = {500'000};
  devices[0].links[2] = devices[2].links[0] = {LinkClass::kNvlink, 4};
  return devices;
}

TEST(DecodeRequest, ReadsAChange) {
  ControlRequest request;
  request.op = ControlOp::kUpdateShare;
  request.name = "a/b";
  request.change = {.memory = kGiB, .compute_limit = Fraction{250'000}};
  const auto back = DecodeRequest(EncodeRequest(request));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(back->op, ControlOp::kUpdateShare);
  EXPECT_EQ(back->name, "a/b");
  EXPECT_EQ(back->change.memory->bytes, kGiB);
  EXPECT_EQ(back->change.compute_limit, Fraction{250'000});
  EXPECT_FALSE(back->change.compute_request || back->change.weight);
  EXPECT_FALSE(back->change.allow_users);
  // Nobody is an answer, and other than saying nothing.
  for (const AllowedUsers& users : {AllowedUsers{}, AllowedUsers{.users = {5, 7}}}) {
    request.change = {.allow_users = users};
    const auto read = DecodeRequest(EncodeRequest(request));
    ASSERT_TRUE(read.has_value()) << read.error().message;
    EXPECT_EQ(read->change.allow_users, users);
  }
  for (const char* bad :
       {R"({"op":"update_share","name":"a","change":{"allow_users":"bob"}})",
        R"({"op":"update_share","name":"a"})", R"({"op":"update_share","change":{"weight":1}})",
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
                   .gpus = {"0"},
                   .memory = kGiB,
                   .compute_request = {300'000},
                   .compute_limit = {700'001},
                   .weight = 7};
  const auto read = DecodeRequest(EncodeRequest(request));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->op, ControlOp::kCreateShare);
  EXPECT_EQ(read->share.name, "a/b");
  EXPECT_EQ(read->share.memory->bytes, kGiB);
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

TEST(DecodeRequest, SeveralGpusRoundTrip) {
  ControlRequest request{ControlOp::kCreateShare, {}, ""};
  request.share = {.gpus = {"2", "GPU-x"},
                   .gpu_count = 2,
                   .on = {{.gpu = "2", .memory = kGiB, .compute_limit = Fraction{1}}}};
  const auto read = DecodeRequest(EncodeRequest(request));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->share.gpus, (std::vector<std::string>{"2", "GPU-x"}));
  EXPECT_EQ(read->share.gpu_count, 2u);
  ASSERT_EQ(read->share.on.size(), 1u);
  EXPECT_EQ(read->share.on[0].gpu, "2");
  EXPECT_EQ(read->share.on[0].memory->bytes, kGiB);
  EXPECT_EQ(read->share.on[0].compute_limit, Fraction{1});
  EXPECT_FALSE(read->share.on[0].compute_request || read->share.on[0].weight);

  ControlRequest update;
  update.op = ControlOp::kUpdateShare;
  update.name = "a";
  update.change.on = {{.gpu = "2", .weight = 5}};
  const auto changed = DecodeRequest(EncodeRequest(update));
  ASSERT_TRUE(changed.has_value()) << changed.error().message;
  ASSERT_EQ(changed->change.on.size(), 1u);
  EXPECT_EQ(changed->change.on[0].weight, 5u);
}

TEST(DecodeRequest, OneGpuIsATextAsBefore) {
  const auto read = DecodeRequest(R"({"op":"create_share","share":{"gpu":"1"}})");
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->share.gpus, std::vector<std::string>{"1"});
  EXPECT_NE(EncodeRequest(*read).find(R"("gpu":"1")"), std::string::npos);
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
                           R"({"op":"create_share","share":{"name":7}})",
                           R"({"op":"create_share","share":{"gpu":7}})",
                           R"({"op":"create_share","share":{"gpu":[]}})",
                           R"({"op":"create_share","share":{"gpu":[["0"]]}})",
                           R"({"op":"create_share","share":{"gpus":0}})",
                           R"({"op":"create_share","share":{"gpus":"2"}})",
                           R"({"op":"create_share","share":{"on":{}}})",
                           R"({"op":"create_share","share":{"on":["0"]}})",
                           R"({"op":"create_share","share":{"on":[{"weight":1}]}})",
                           R"({"op":"create_share","share":{"on":[{"gpu":"0"}]}})",
                           R"({"op":"create_share","share":{"on":[{"gpu":0,"weight":1}]}})",
                           R"({"op":"create_share","share":{"on":[{"gpu":"0","memry":1}]}})",
                           R"({"op":"create_share","share":{"on":[{"gpu":"0","name":"n"}]}})",
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
  ShareDevice& on = share.devices[0];
  on.busy = 0.25;
  on.waiting_part = 0.5;
  on.at_limit_part = 0.125;
  on.undrained_part = 0.0625;
  on.backlog_ns = 7;
  on.persistent_kernels = 2;
  on.throttle_reasons = {ThrottleReason::kWaitsForOthers, ThrottleReason::kAtLimit};
  const auto read = ShareFromJson(ToJson(share));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(ToJson(*read), ToJson(share));
  EXPECT_EQ(read->devices[0].throttle_reasons, on.throttle_reasons);
  EXPECT_EQ(ToJson(share)["devices"][0]["throttle_reasons"][0], "waits_for_others");
  nlohmann::json newer = ToJson(share);
  newer["devices"][0]["throttle_reasons"] = {"for_a_reason_of_tomorrow", "idle"};
  EXPECT_EQ(ShareFromJson(newer)->devices[0].throttle_reasons, std::vector{ThrottleReason::kIdle});
  nlohmann::json older = ToJson(share);
  for (const char* name : {"throttle_reasons", "stalled", "active"}) {
    older["devices"][0].erase(name);
  }
  ASSERT_TRUE(ShareFromJson(older).has_value()) << "of the build before";
  EXPECT_TRUE(ShareFromJson(older)->devices[0].throttle_reasons.empty());
  EXPECT_EQ(read->devices.at(0).compute_request.ppm, 333'333u);
  EXPECT_EQ(read->members.at(0).command, "python3");
  DeviceStatus device = FourDevices()[0];
  device.links[0].kind = LinkClass::kSelf;
  device.busy = 0.75;
  const auto linked = DeviceFromJson(ToJson(device));
  ASSERT_TRUE(linked.has_value()) << linked.error().message;
  EXPECT_EQ(linked->links, device.links);
  EXPECT_EQ(linked->busy, 0.75);
  EXPECT_FALSE(linked->others.has_value());
  EXPECT_FALSE(ToJson(device).contains("others"));
  device.others = 0.25;
  EXPECT_EQ(DeviceFromJson(ToJson(device))->others, 0.25);
  EXPECT_FALSE(ShareFromJson(nlohmann::json::object()).has_value());
  EXPECT_EQ(ErrorOfReply(ToJson(Error{"c", "m"}))->message, "m");
  EXPECT_FALSE(ErrorOfReply(ToJson(share)).has_value());
}

// What `make fuzz` does for longer: bytes near to a request, none of which may end badly.
TEST(DecodeRequest, SurvivesMutatedRequests) {
#ifdef PRORATA_SANITIZED
  constexpr uint32_t kRuns = 4'000;
#else
  constexpr uint32_t kRuns = 20'000;
#endif
  const std::string seed = EncodeRequest(
      {ControlOp::kCreateShare,
       {.name = "n", .gpus = {"0", "1"}, .gpu_count = 2, .on = {{.gpu = "1", .weight = 5}}},
       ""});
  for (uint32_t run = 1; run <= kRuns; ++run) {
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
}  // namespace prorata::api
