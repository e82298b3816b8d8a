// A share's memory: what is set aside (the request), what it may hold (the limit), both as sizes or
// as parts of a device.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "agent/share/memory_fit.h"
#include "agent/share/validate_share.h"
#include "api/control.h"
#include "base/bytes.h"

namespace prorata::agent {
namespace {

api::DeviceStatus Device(uint64_t total_bytes = 16 * kGiB, uint32_t index = 0) {
  api::DeviceStatus device;
  device.index = index;
  device.uuid = "GPU-" + std::to_string(index);
  device.total_bytes = total_bytes;
  return device;
}

// A share more on the device.
void Has(api::DeviceStatus& device, uint64_t request_bytes, uint64_t limit_bytes,
         uint64_t borrowed_bytes = 0) {
  device.promised_bytes += request_bytes;
  device.limit_bytes += limit_bytes;
  device.borrowed_bytes += borrowed_bytes;
  ++device.shares;
}

api::MemorySize Percent(uint32_t percent) { return api::MemorySize(Fraction{percent * 10'000}); }

// "REQUEST-LIMIT" in GiB, or code and message.
std::string Got(const api::ShareSpec& spec, const std::vector<api::DeviceStatus>& devices) {
  const auto valid = ValidateShare(spec, devices, {});
  if (!valid) return valid.error().code + ": " + valid.error().message;
  std::string text;
  for (const auto& [device, terms] : valid->devices) {
    text += (text.empty() ? "" : " ") + std::to_string(terms.memory_request_bytes / kGiB) + "-" +
            std::to_string(terms.memory_bytes / kGiB);
  }
  return text;
}

void ExpectSays(const std::string& got, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(got.find(part), std::string::npos) << "no '" << part << "' in: " << got;
  }
}

TEST(MemorySize, LessThanAContextTakesIsASlipOfThePen) {
  for (const char* slip : {"4", "4B", "4K", "63.9M", "1MiB"}) {
    const auto size = api::ParseMemorySize(slip);
    ASSERT_FALSE(size) << slip;
    EXPECT_EQ(size.error().code, "bad_size");
    EXPECT_NE(size.error().message.find("less than 64 MiB"), std::string::npos) << slip;
    EXPECT_FALSE(api::ParseMemoryRequest(slip)) << slip;
  }
  EXPECT_NE(api::ParseMemorySize("4").error().message.find("for example 4GiB"), std::string::npos);
  EXPECT_EQ(api::ParseMemorySize("64M"), api::MemorySize(64 * kMiB));
}

TEST(MemorySize, TheAgentRefusesLessThanAContextTakes) {
  api::DeviceStatus device;
  device.total_bytes = 16 * kGiB;
  for (const api::MemorySize size :
       {api::MemorySize(4), api::MemorySize(64 * kMiB - 1), *api::ParseMemorySize("0.1%")}) {
    const auto refused = ValidateShare({.memory = size}, {&device, 1}, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, "memory_too_small");
    EXPECT_NE(refused.error().message.find("64 MiB"), std::string::npos);
  }
  EXPECT_TRUE(ValidateShare({.memory = 64 * kMiB}, {&device, 1}, {}));
  // One that is there with less, of an agent before, may be changed otherwise.
  api::ShareTerms small;
  small.compute_limit = Fraction::One();
  small.memory_bytes = small.memory_request_bytes = 4;
  EXPECT_TRUE(ValidateChange({.weight = 7}, {&small, 1}, {&device, 1}));
}

TEST(MemorySize, IsASizeOrAPartOfADevice) {
  EXPECT_EQ(api::ParseMemorySize("4GiB"), api::MemorySize(4 * kGiB));
  EXPECT_EQ(api::ParseMemorySize("25%"), Percent(25));
  EXPECT_EQ(api::ParseMemorySize("100%")->Of(16 * kGiB), 16 * kGiB);
  EXPECT_EQ(api::ParseMemorySize("25%")->Of(16 * kGiB), 4 * kGiB);
  EXPECT_EQ(api::ParseMemorySize("33.3333%")->Of(10 * kMiB), 2 * kMiB) << "whole steps of 2 MiB";
  EXPECT_EQ(api::ParseMemorySize("0.0001%")->Of(kGiB), 2 * kMiB) << "and at least one";
  EXPECT_EQ(Percent(75).Of(uint64_t{1} << 44),
            (uint64_t{3} << 42) / api::kMemoryStep * api::kMemoryStep);
  EXPECT_EQ(api::ParseMemoryRequest("0"), api::MemorySize());
  EXPECT_EQ(api::ParseMemoryRequest("10%"), Percent(10));
  for (const char* bad : {"0%", "101%", "-1%", "%", "25 %", "0.5", "x", "", "0", "1e2%"}) {
    EXPECT_EQ(api::ParseMemorySize(bad).error().code, "bad_size") << bad;
  }
  ExpectSays(api::ParseMemorySize("101%").error().message, {"'101%'", "at most 100%", "25%"});
  ExpectSays(api::ParseMemoryRequest("0%").error().message, {"'0%'", "or 0 to guarantee nothing"});
}

TEST(MemorySize, TravelsInRequests) {
  api::ControlRequest create{.op = api::ControlOp::kCreateShare};
  create.share.memory = Percent(75);
  create.share.memory_request = api::MemorySize();
  create.share.on = {{.gpu = "1", .memory = kGiB, .memory_request = Percent(5)}};
  const auto read = api::DecodeRequest(api::EncodeRequest(create));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->share.memory, create.share.memory);
  EXPECT_EQ(read->share.memory_request, create.share.memory_request);
  EXPECT_EQ(read->share.on[0].memory, create.share.on[0].memory);
  EXPECT_EQ(read->share.on[0].memory_request, create.share.on[0].memory_request);
  api::ControlRequest update{.op = api::ControlOp::kUpdateShare, .name = "x"};
  update.change.memory_request = Percent(100);
  EXPECT_EQ(api::DecodeRequest(api::EncodeRequest(update))->change.memory_request, Percent(100));
  for (const char* terms :
       {R"("memory_part":0)", R"("memory_part":1.01)", R"("memory_part":"25%")",
        R"("memory_request_part":0)", R"("memory_request_bytes":-1)",
        R"("memory_bytes":5,"memory_part":0.5)",
        R"("on":[{"gpu":"0","memory_request_bytes":5,"memory_request_part":0.5}])"}) {
    EXPECT_FALSE(
        api::DecodeRequest(std::string(R"({"op":"create_share","share":{)") + terms + "}}"))
        << terms;
    EXPECT_FALSE(api::DecodeRequest(std::string(R"({"op":"update_share","name":"x","change":{)") +
                                    terms + "}}"))
        << terms;
  }
  api::ShareStatus share;
  share.devices.emplace_back().memory_limit_bytes = 12;
  share.devices[0].memory_request_bytes = 4;
  EXPECT_EQ(api::ToJson(share)["guaranteed"], false);
  EXPECT_EQ(api::ShareFromJson(api::ToJson(share))->devices[0].memory_request_bytes, 4u);
  share.devices[0].memory_request_bytes = 12;
  EXPECT_EQ(api::ToJson(share)["guaranteed"], true);
}

TEST(MemoryRequest, IsAllOfTheLimitUnlessItIsSaidOrTheAgentOvercommits) {
  api::DeviceStatus device = Device();
  EXPECT_EQ(Got({.memory = 4 * kGiB}, {device}), "4-4");
  EXPECT_EQ(Got({}, {device}), "16-16");
  EXPECT_EQ(Got({.memory = 12 * kGiB, .memory_request = 4 * kGiB}, {device}), "4-12");
  EXPECT_EQ(Got({.memory_request = 4 * kGiB}, {device}), "4-16") << "up to all there could ever be";
  EXPECT_EQ(Got({.memory = 12 * kGiB, .memory_request = api::MemorySize()}, {device}), "0-12");
  device.overcommit = 1.5;
  EXPECT_EQ(Got({.memory = 4 * kGiB}, {device}), "0-4");
  EXPECT_EQ(Got({.memory = 4 * kGiB, .guaranteed = true}, {device}), "4-4");
  EXPECT_EQ(Got({.memory = 12 * kGiB, .memory_request = 4 * kGiB}, {device}), "4-12");
}

TEST(MemoryRequest, APartIsOfEachDevicesOwnMemory) {
  const std::vector<api::DeviceStatus> devices = {Device(16 * kGiB, 0), Device(80 * kGiB, 1)};
  EXPECT_EQ(Got({.gpus = {"1", "0"}, .memory = Percent(25)}, devices), "20-20 4-4");
  EXPECT_EQ(
      Got({.gpus = {"0", "1"}, .memory = Percent(50), .memory_request = Percent(25)}, devices),
      "4-8 20-40");
  EXPECT_EQ(Got({.gpus = {"0", "1"},
                 .memory = Percent(50),
                 .on = {{.gpu = "1", .memory = 10 * kGiB, .memory_request = Percent(10)}}},
                devices),
            "8-8 8-10");
  // One of the two is chosen where it fits, by its own size.
  EXPECT_EQ(Got({.memory = Percent(25), .memory_request = 10 * kGiB}, devices), "10-20");
  ExpectSays(Got({.gpus = {"0"}, .on = {{.gpu = "7", .memory = Percent(25)}}}, devices),
             {"gpu_not_in_share: ", "'7'", "GPU 0 (GPU-0)"});
  ExpectSays(Got({.gpus = {"7"}, .memory = Percent(25)}, devices),
             {"unknown_gpu: ", "'7'", "1 (GPU-1"});
}

TEST(MemoryRequest, TwoOfFourToTwelveFitOnSixteenAndNoMoreThanThereIs) {
  api::DeviceStatus device = Device();
  const api::ShareSpec spec{.memory = 12 * kGiB, .memory_request = 4 * kGiB};
  Has(device, 4 * kGiB, 12 * kGiB);
  EXPECT_EQ(Got(spec, {device}), "4-12");
  Has(device, 4 * kGiB, 12 * kGiB);
  ExpectSays(Got(spec, {device}),
             {"memory_exceeded: ", "up to 12 GiB", "GPU 0 (GPU-0)", "never give it more than 8 GiB",
              "8 GiB of its 16 GiB", "2 other shares", "ask for a lower limit"});
  EXPECT_EQ(Got({.memory = 8 * kGiB, .memory_request = 4 * kGiB}, {device}), "4-8");
  EXPECT_EQ(Got({.memory = 8 * kGiB}, {device}), "8-8");
  ExpectSays(Got({.memory = 9 * kGiB}, {device}),
             {"memory_exceeded: ", "asks for 9 GiB", "only 8 GiB left", "8 GiB of its 16 GiB",
              "--memory-request"});
  ExpectSays(Got({.memory = 12 * kGiB, .memory_request = 9 * kGiB}, {device}),
             {"memory_exceeded: ", "requests 9 GiB", "only 8 GiB left"});
  device.borrowed_bytes = 6 * kGiB;
  EXPECT_EQ(Got({.memory = 8 * kGiB, .memory_request = 2 * kGiB}, {device}), "2-8");
  ExpectSays(Got({.memory = 8 * kGiB, .memory_request = 3 * kGiB}, {device}),
             {"memory_exceeded: ", "requests 3 GiB", "only 2 GiB left now",
              "6 GiB beyond their requests", "try again"});
  // It could be had once: who waits for it may wait.
  EXPECT_EQ(Got({.memory = 9 * kGiB}, {Emptied(device)}), "9-9");
  ExpectSays(Got({.memory = 17 * kGiB}, {Emptied(device)}), {"17 GiB", "ask for at most 16 GiB"});
}

TEST(MemoryRequest, BadInputIsOneSentenceWithTheFigures) {
  const api::DeviceStatus device = Device();
  ExpectSays(Got({.memory = 2 * kGiB, .memory_request = 4 * kGiB}, {device}),
             {"limit_below_request: ", "GPU 0", "2 GiB", "4 GiB", "lower --memory-request"});
  ExpectSays(Got({.memory = Percent(10), .memory_request = 4 * kGiB}, {device}),
             {"limit_below_request: ", "1.60 GiB", "4 GiB"});
  ExpectSays(Got({.memory_request = kGiB, .guaranteed = true}, {device}),
             {"guaranteed_and_request: ", "--guaranteed", "--memory-request"});
  ExpectSays(Got({.gpus = {"0"}, .on = {{.gpu = "0", .memory_request = kGiB}}, .guaranteed = true},
                 {device}),
             {"guaranteed_and_request: "});
  ExpectSays(Got({.memory_request = 17 * kGiB}, {device}),
             {"memory_exceeded: ", "17 GiB", "16 GiB"});
  api::DeviceStatus full = Device();
  Has(full, 16 * kGiB, 16 * kGiB);
  ExpectSays(Got({}, {full}), {"memory_exceeded: ", "without --memory", "only 0 B left"});
}

TEST(MemoryRequest, ChangesWithItsLimitOrAlone) {
  api::DeviceStatus device = Device();
  Has(device, 4 * kGiB, 12 * kGiB, 5 * kGiB);
  auto changed = [&](const api::ShareChange& change, uint64_t request, uint64_t limit) {
    api::DeviceStatus with = device;
    Has(with, request, limit);
    api::ShareTerms now{limit, {}, Fraction::One(), 100, request};
    const auto after = ValidateChange(change, {&now, 1}, {&with, 1});
    if (!after) return after.error().code + ": " + after.error().message;
    return std::to_string(after->at(0).memory_request_bytes / kGiB) + "-" +
           std::to_string(after->at(0).memory_bytes / kGiB);
  };
  // All of the limit stays all of it, a part stays what it is.
  EXPECT_EQ(changed({.memory = 6 * kGiB}, 4 * kGiB, 4 * kGiB), "6-6");
  EXPECT_EQ(changed({.memory = 6 * kGiB}, 3 * kGiB, 4 * kGiB), "3-6");
  EXPECT_EQ(changed({.memory = 2 * kGiB}, 0, 4 * kGiB), "0-2");
  EXPECT_EQ(changed({.weight = 5}, 3 * kGiB, 4 * kGiB), "3-4");
  EXPECT_EQ(changed({.memory_request = kGiB}, 4 * kGiB, 4 * kGiB), "1-4");
  EXPECT_EQ(changed({.memory_request = Percent(50)}, 4 * kGiB, 12 * kGiB), "8-12");
  EXPECT_EQ(changed({.memory = 12 * kGiB, .memory_request = 2 * kGiB}, 4 * kGiB, 4 * kGiB), "2-12");
  ExpectSays(changed({.memory = 2 * kGiB}, 3 * kGiB, 4 * kGiB), {"limit_below_request: ", "3 GiB"});
  ExpectSays(changed({.memory_request = 5 * kGiB}, 3 * kGiB, 4 * kGiB),
             {"limit_below_request: ", "5 GiB", "4 GiB"});
  ExpectSays(changed({.memory = 13 * kGiB, .memory_request = kGiB}, kGiB, 4 * kGiB),
             {"memory_exceeded: ", "up to 13 GiB", "12 GiB", "its 16 GiB"});
  // What it has it keeps, whatever came beside it.
  Has(device, 8 * kGiB, 8 * kGiB);
  EXPECT_EQ(changed({.memory_request = 4 * kGiB}, kGiB, 12 * kGiB), "4-12");
  ExpectSays(changed({.memory_request = 5 * kGiB}, kGiB, 12 * kGiB), {"only 4 GiB left"});
  EXPECT_EQ(changed({.memory = 11 * kGiB}, kGiB, 12 * kGiB), "1-11");
}

// Whatever is asked in whatever order, what is set aside is there, and no limit was beyond what
// there could be when it was given.
TEST(MemoryRequest, OnRandomMachinesNoMoreIsSetAsideThanThereIs) {
  std::mt19937_64 random(3);
  int made = 0, refused = 0;
  for (int round = 0; round < 2'000; ++round) {
    api::DeviceStatus device = Device(100);
    device.total_bytes = 100 * api::kMemoryStep;
    device.foreign_bytes = random() % 30 * api::kMemoryStep;
    if (random() % 2 == 0) device.overcommit = 1.5;
    const uint64_t there = device.total_bytes - device.foreign_bytes;
    for (int share = 0; share < 8; ++share) {
      api::ShareSpec spec;
      if (random() % 4 != 0) spec.memory = (1 + random() % 60) * api::kMemoryStep;
      if (random() % 2 == 0) spec.memory_request = random() % 40 * api::kMemoryStep;
      if (random() % 8 == 0)
        spec.memory_request = Percent(1 + static_cast<uint32_t>(random() % 100));
      spec.guaranteed = !spec.memory_request && random() % 4 == 0;
      const auto valid = ValidateShare(spec, {&device, 1}, {});
      valid ? ++made : ++refused;
      if (!valid) continue;
      const api::ShareTerms& terms = valid->devices[0].terms;
      ASSERT_LE(terms.memory_request_bytes, terms.memory_bytes);
      ASSERT_LE(terms.memory_bytes + device.promised_bytes, there);
      Has(device, terms.memory_request_bytes, terms.memory_bytes);
      ASSERT_LE(device.promised_bytes, there);
    }
  }
  EXPECT_GT(made, 2'000);
  EXPECT_GT(refused, 2'000);
}

}  // namespace
}  // namespace prorata::agent
