#include "agent/share/validate_share.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace prorata::agent {
namespace {

using namespace api;

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
         {"memory_exceeded: ", "9 GiB", "GPU 0 ", "8 GiB in all", "at most 8 GiB"});
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

}  // namespace
}  // namespace prorata::agent
