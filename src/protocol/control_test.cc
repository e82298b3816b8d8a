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
  ASSERT_EQ(valid->devices.size(), 1u);
  EXPECT_EQ(valid->devices[0].terms.memory_bytes, 2 * kGiB);
  EXPECT_EQ(valid->devices[0].device, 0u);
}

TEST(ValidateShare, RefusesWhatCannotBeHad) {
  EXPECT_EQ(CodeFor({.memory = 2 * kGiB, .compute_request = {400'000}}), "");
  EXPECT_EQ(CodeFor({.memory = 2 * kGiB + 1}), "memory_exceeded");
  EXPECT_EQ(CodeFor({.compute_request = {400'001}}), "request_exceeded");
  EXPECT_EQ(CodeFor({.compute_request = {300'000}, .compute_limit = {299'999}}),
            "limit_below_request");
  EXPECT_EQ(CodeFor({.compute_limit = {0}}), "bad_fraction");
  EXPECT_EQ(CodeFor({.name = "taken"}), "name_in_use");
  EXPECT_EQ(CodeFor({.gpus = {"1"}}), "unknown_gpu");
  EXPECT_EQ(CodeFor({.gpus = {"GPU-00000000-0000-0000-0000-000000000001"}}), "");
  EXPECT_EQ(CodeFor({.gpus = {"0"}}), "");
  EXPECT_EQ(CodeFor({.weight = 0}), "bad_weight");
  EXPECT_EQ(CodeFor({.priority = 101}), "bad_priority");
  EXPECT_EQ(CodeFor({.priority = -101}), "bad_priority");
  EXPECT_EQ(CodeFor({.yield_within_ns = 499'999}), "bad_yield_within");
  EXPECT_EQ(CodeFor({.yield_within_ns = 1'000'000'001}), "bad_yield_within");
}

TEST(ValidateShare, AnUnknownGpuListsTheKnownOnes) {
  const auto result = ValidateShare({.gpus = {"7"}}, OneDevice(), {});
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message.find("GPU-00000000-0000-0000-0000-000000000001"),
            std::string::npos);
}

TEST(ValidateShare, WithoutAGpuTheOneWhereItFits) {
  std::vector<DeviceStatus> devices = {OneDevice()[0], OneDevice()[0], OneDevice()[0]};
  devices[1].promised_bytes = 0;
  devices[1].promised_request = Fraction::One();
  devices[2].promised_bytes = 1 * kGiB;
  EXPECT_EQ(ValidateShare({.compute_request = {100'000}}, devices, {})->devices.at(0).device, 2u);
  EXPECT_EQ(ValidateShare({}, devices, {})->devices.at(0).device, 1u);
}

// Four GPUs of 8 GiB, of which GPU 3 is half promised; 0 and 2 are linked best.
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

// The GPUs of the share, or the code and message of its refusal.
std::string GpusFor(const ShareSpec& spec) {
  const auto valid = ValidateShare(spec, FourDevices(), {});
  if (!valid) return valid.error().code + ": " + valid.error().message;
  std::string gpus;
  for (const auto& on : valid->devices) gpus += std::to_string(on.device);
  return gpus;
}

TEST(ValidateShareOnSeveralGpus, InTheOrderInWhichTheyAreNamed) {
  const ShareSpec spec{.gpus = {"2", "GPU-00000000-0000-0000-0000-000000000001"},
                       .memory = 4 * kGiB,
                       .compute_request = {300'000},
                       .weight = 7,
                       .on = {{.gpu = "1", .memory = 6 * kGiB, .weight = 9},
                              {.gpu = "GPU-00000000-0000-0000-0000-000000000002",
                               .compute_request = Fraction{0},
                               .compute_limit = Fraction{500'000}}}};
  const auto valid = ValidateShare(spec, FourDevices(), {});
  ASSERT_TRUE(valid.has_value()) << valid.error().message;
  ASSERT_EQ(valid->devices.size(), 2u);
  EXPECT_EQ(valid->devices[0].device, 2u);
  EXPECT_EQ(valid->devices[0].terms, (ShareTerms{4 * kGiB, {0}, {500'000}, 7, 4 * kGiB}));
  EXPECT_EQ(valid->devices[1].device, 1u);
  EXPECT_EQ(valid->devices[1].terms,
            (ShareTerms{6 * kGiB, {300'000}, Fraction::One(), 9, 6 * kGiB}));
}

TEST(ValidateShareOnSeveralGpus, WithoutMemoryAllThatIsFreeOfEach) {
  const auto valid = ValidateShare({.gpus = {"3", "0"}}, FourDevices(), {});
  ASSERT_TRUE(valid.has_value()) << valid.error().message;
  EXPECT_EQ(valid->devices[0].terms.memory_bytes, 4 * kGiB);
  EXPECT_EQ(valid->devices[1].terms.memory_bytes, 8 * kGiB);
}

TEST(ValidateShareOnSeveralGpus, TheAgentChoosesTheBestLinkedThatFit) {
  EXPECT_EQ(GpusFor({.gpu_count = 2}), "02");
  EXPECT_EQ(GpusFor({.gpu_count = 4, .memory = 4 * kGiB}), "0123");
  EXPECT_EQ(GpusFor({.gpu_count = 3, .compute_request = {600'000}}), "012");
}

TEST(ValidateShareOnSeveralGpus, EveryRefusalSaysWhatWhereAndWhatThereIs) {
  auto expect = [](const ShareSpec& spec, std::initializer_list<const char*> parts) {
    const std::string got = GpusFor(spec);
    for (const char* part : parts) {
      EXPECT_NE(got.find(part), std::string::npos) << "no '" << part << "' in: " << got;
    }
  };
  expect({.gpus = {"0", "GPU-00000000-0000-0000-0000-000000000000"}},
         {"gpu_twice: ", "GPU 0 ", "name each once"});
  expect({.gpus = {"0", "7"}}, {"unknown_gpu: ", "'7'", "3 (GPU-"});
  expect({.gpu_count = 5}, {"gpu_count: ", "5 GPUs", "only 4"});
  expect({.gpu_count = 17}, {"gpu_count: ", "17", "1 to 16"});
  expect({.gpu_count = 0}, {"gpu_count: "});
  expect({.gpus = {"0", "1"}, .gpu_count = 3}, {"gpu_count: ", "3 GPUs", "names 2"});
  expect({.gpus = {"0", "3"}, .memory = 5 * kGiB},
         {"memory_exceeded: ", "5 GiB", "GPU 3 ", "4 GiB left", "ask for less"});
  expect({.gpus = {"0", "1"}, .memory = 9 * kGiB},
         {"memory_exceeded: ", "9 GiB", "GPU 0 ", "8 GiB", "no more than it has"});
  expect({.gpu_count = 4, .memory = 5 * kGiB},
         {"memory_exceeded: ", "4 GPUs", "only 3 of the 4", "GPU 3 ", "4 GiB left"});
  expect({.gpu_count = 4, .compute_request = {600'000}},
         {"request_exceeded: ", "only 3 of the 4", "GPU 3 ", "0.5"});
  expect({.gpus = {"0", "1"}, .on = {{.gpu = "2", .memory = kGiB}}},
         {"gpu_not_in_share: ", "'2'", "GPU 0 ", "GPU 1 "});
  expect({.gpu_count = 2, .on = {{.gpu = "2", .memory = kGiB}}},
         {"gpu_not_in_share: ", "'2'", "--gpu"});
  expect({.gpus = {"0", "1"},
          .on = {{.gpu = "1", .memory = kGiB},
                 {.gpu = "GPU-00000000-0000-0000-0000-000000000001", .weight = 3}}},
         {"gpu_twice: ", "GPU 1 "});
  expect({.gpus = {"0", "1"}, .on = {{.gpu = "1", .memory = 0}}}, {"memory_zero: ", "GPU 1 "});
  expect({.gpus = {"0", "1"}, .on = {{.gpu = "1", .compute_limit = Fraction{0}}}},
         {"bad_fraction: ", "GPU 1 "});
  expect({.gpus = {"0", "1"},
          .compute_request = {300'000},
          .on = {{.gpu = "1", .compute_limit = Fraction{200'000}}}},
         {"limit_below_request: ", "GPU 1 ", "0.2", "0.3"});
}

TEST(ValidateChangeOnSeveralGpus, AllOfItOrNothing) {
  const std::vector<DeviceStatus> all = FourDevices();
  const std::vector<DeviceStatus> own = {all[3], all[1]};  // 4 GiB and half of GPU 3 are its own
  const std::vector<ShareTerms> now = {{4 * kGiB, {500'000}, Fraction::One(), 100, 4 * kGiB},
                                       {2 * kGiB, {}, {500'000}, 100, 2 * kGiB}};
  auto after = ValidateChange({.memory = kGiB, .on = {{.gpu = "3", .memory = 6 * kGiB}}}, now, own);
  ASSERT_TRUE(after.has_value()) << after.error().message;
  EXPECT_EQ(after->at(0), (ShareTerms{6 * kGiB, {500'000}, Fraction::One(), 100, 6 * kGiB}));
  EXPECT_EQ(after->at(1), (ShareTerms{kGiB, {}, {500'000}, 100, kGiB}));
  after = ValidateChange({.on = {{.gpu = "1", .weight = 5}}}, now, own);
  ASSERT_TRUE(after.has_value()) << after.error().message;
  EXPECT_EQ(after->at(0), now[0]);
  EXPECT_EQ(after->at(1).weight, 5u);

  auto code = [&](const ShareChange& change) {
    const auto result = ValidateChange(change, now, own);
    return result ? "" : result.error().code;
  };
  EXPECT_EQ(code({.memory = 9 * kGiB}), "memory_exceeded");
  EXPECT_EQ(code({.on = {{.gpu = "0", .weight = 5}}}), "gpu_not_in_share");
  EXPECT_EQ(code({.on = {{.gpu = "1", .memory = 0}}}), "memory_zero");
  EXPECT_EQ(code({.compute_request = Fraction{600'000}}), "limit_below_request") << "of GPU 1";
  EXPECT_EQ(code({.on = {{.gpu = "3", .compute_request = Fraction{600'000}}}}), "");
}

// The device's only other share holds 3 GiB and requests 0.4; this one 2 GiB and 0.2.
std::string CodeForChange(const ShareChange& change) {
  const ShareTerms now{2 * kGiB, {200'000}, {500'000}, 100, 2 * kGiB};
  const auto result = ValidateChange(change, std::vector{now}, OneDevice());
  return result ? "" : result.error().code;
}

TEST(ValidateChange, WhatIsNotNamedStays) {
  const ShareTerms now{2 * kGiB, {200'000}, {500'000}, 70, 2 * kGiB};
  const auto terms = ValidateChange({.memory = kGiB}, std::vector{now}, OneDevice());
  ASSERT_TRUE(terms.has_value());
  EXPECT_EQ(terms->at(0).memory_bytes, kGiB);
  EXPECT_EQ(terms->at(0).memory_request_bytes, kGiB) << "all of the limit, as before";
  EXPECT_EQ(terms->at(0).compute_request.ppm, 200'000u);
  EXPECT_EQ(terms->at(0).compute_limit.ppm, 500'000u);
  EXPECT_EQ(terms->at(0).weight, 70u);
}

TEST(ValidateChange, CountsTheShareItselfOut) {
  EXPECT_EQ(CodeForChange({.memory = 4 * kGiB}), "");
  EXPECT_EQ(CodeForChange({.memory = 4 * kGiB + 1}), "memory_exceeded");
  EXPECT_EQ(CodeForChange({.compute_request = Fraction{500'000}}), "");
  EXPECT_EQ(
      CodeForChange({.compute_request = Fraction{600'001}, .compute_limit = Fraction{1'000'000}}),
      "request_exceeded");
  EXPECT_EQ(CodeForChange({.compute_limit = Fraction{199'999}}), "limit_below_request");
  EXPECT_EQ(CodeForChange({.compute_limit = Fraction{0}}), "bad_fraction");
  EXPECT_EQ(CodeForChange({.weight = 0}), "bad_weight");
}

TEST(ValidateChange, LessIsAlwaysToBeHad) {
  std::vector<DeviceStatus> crowded = OneDevice();
  crowded[0].foreign_bytes = 8 * kGiB;  // programs outside prorata took it all
  const ShareTerms now{2 * kGiB, {}, Fraction::One(), 100, 2 * kGiB};
  EXPECT_TRUE(ValidateChange({.memory = kGiB}, std::vector{now}, crowded).has_value());
  EXPECT_FALSE(ValidateChange({.memory = 3 * kGiB}, std::vector{now}, crowded).has_value());
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
  on.why_slow = {policy::Slowness::kWaitsForTurn, policy::Slowness::kAtLimit};
  const auto read = ShareFromJson(ToJson(share));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(ToJson(*read), ToJson(share));
  EXPECT_EQ(read->devices[0].why_slow, on.why_slow);
  EXPECT_EQ(ToJson(share)["devices"][0]["why_slow"][0], "waits_for_turn");
  nlohmann::json newer = ToJson(share);
  newer["devices"][0]["why_slow"] = {"for_a_reason_of_tomorrow", "idle"};
  EXPECT_EQ(ShareFromJson(newer)->devices[0].why_slow, std::vector{policy::Slowness::kIdle});
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

// What the fuzzer does for longer: bytes near to a request, none of which may end badly.
TEST(DecodeRequest, SurvivesMutatedRequests) {
  const std::string seed = EncodeRequest(
      {ControlOp::kCreateShare,
       {.name = "n", .gpus = {"0", "1"}, .gpu_count = 2, .on = {{.gpu = "1", .weight = 5}}},
       ""});
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
