#include "api/on_full.h"
#include "agent/share/validate_share.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "agent/config/overcommit.h"
#include "api/control.h"
#include "base/bytes.h"

namespace prorata::agent {
namespace {

using namespace api;

TEST(OnFull, IsReadAsItIsWritten) {
  for (const char* text : {"fail", "wait", "wait=1ms", "wait=30s", "wait=5m", "wait=1193h"}) {
    const auto on_full = ParseOnFull(text);
    ASSERT_TRUE(on_full.has_value()) << on_full.error().message;
    EXPECT_EQ(FormatOnFull(*on_full), text);
  }
  EXPECT_FALSE(ParseOnFull("fail")->waits());
  EXPECT_EQ(ParseOnFull("wait=2s")->wait_ms, 2000u);
}

TEST(OnFull, RefusesWhatItIsNot) {
  for (const char* text : {"", "Wait", "wait=", "wait=0s", "wait=-1s", "wait 5s", "wait=5",
                           "fail=5s", "wait=1194h", "retry"}) {
    EXPECT_EQ(ParseOnFull(text).error().code, "bad_on_full") << text;
  }
}

TEST(OnFull, TravelsInRequestsAndReplies) {
  ControlRequest create{.op = ControlOp::kCreateShare};
  create.share.on_full = {30'000};
  create.share.guaranteed = true;
  auto decoded = DecodeRequest(EncodeRequest(create));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(decoded->share.on_full, OnFull{30'000});
  EXPECT_TRUE(decoded->share.guaranteed);

  ControlRequest update{.op = ControlOp::kUpdateShare, .name = "x"};
  update.change.on_full = OnFull{};
  decoded = DecodeRequest(EncodeRequest(update));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(decoded->change.on_full, OnFull{});

  for (const char* bad : {R"({"op":"create_share","share":{"on_full":5}})",
                          R"({"op":"create_share","share":{"on_full":"waits"}})",
                          R"({"op":"create_share","share":{"guaranteed":1}})",
                          R"({"op":"update_share","name":"x","change":{"guaranteed":true}})"}) {
    EXPECT_FALSE(DecodeRequest(bad).has_value()) << bad;
  }
  ShareStatus share;
  share.on_full = {wire::kWaitForever};
  share.devices.emplace_back();
  share.devices[0].memory_waits = 2;
  share.devices[0].memory_waiting_ns = 7;
  share.devices[0].admitted_bytes = kGiB;
  const auto read = ShareFromJson(ToJson(share));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->on_full, OnFull{wire::kWaitForever});
  EXPECT_EQ(read->devices[0].memory_waits, 2u);
  EXPECT_EQ(read->devices[0].memory_waiting_ns, 7u);
  EXPECT_EQ(read->devices[0].admitted_bytes, kGiB);
  DeviceStatus device;
  device.overcommit = 1.5;
  device.promised_bytes = 3;
  device.limit_bytes = 5;
  device.borrowed_bytes = 2;
  const auto read_device = DeviceFromJson(ToJson(device));
  ASSERT_TRUE(read_device.has_value()) << read_device.error().message;
  EXPECT_EQ(read_device->overcommit, 1.5);
  EXPECT_EQ(read_device->promised_bytes, 3u);
  EXPECT_EQ(read_device->limit_bytes, 5u);
  EXPECT_EQ(read_device->borrowed_bytes, 2u);
}

TEST(Overcommit, IsARatioOfOneGpuOrOfAll) {
  const auto all = ParseOvercommit("1.5");
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->gpu, "");
  EXPECT_EQ(all->ratio, 1.5);
  EXPECT_EQ(ParseOvercommit("GPU-1=2")->gpu, "GPU-1");
  EXPECT_EQ(ParseOvercommit("0=1")->ratio, 1);
  for (const char* text : {"", "0.9", "0", "-1", "x", "1.5x", "nan", "inf", "1e1", "=2",
                           "0=", "101", "0=1=2", " 2", "0x2"}) {
    EXPECT_EQ(ParseOvercommit(text).error().code, "bad_overcommit") << text;
  }
  EXPECT_EQ(FormatRatio(1), "1");
  EXPECT_EQ(FormatRatio(1.25), "1.25");
  EXPECT_EQ(FormatRatio(100), "100");
}

DeviceStatus Overcommitted() {
  DeviceStatus device;
  device.total_bytes = 8 * kGiB;
  device.foreign_bytes = 2 * kGiB;
  device.limit_bytes = 5 * kGiB;
  device.overcommit = 2;
  device.shares = 1;
  return device;
}

std::string CodeFor(uint64_t memory_bytes, const DeviceStatus& device) {
  const auto valid = ValidateShare({.memory = memory_bytes}, {&device, 1}, {});
  return valid ? "" : valid.error().code;
}

TEST(Overcommit, PromisesARatioOfWhatSharesMayHold) {
  DeviceStatus device = Overcommitted();
  EXPECT_EQ(CodeFor(6 * kGiB, device), "");                     // 5 + 6 <= 2 * (8 - 2)
  EXPECT_EQ(CodeFor(6 * kGiB + 1, device), "memory_exceeded");  // more than there can ever be
  device.limit_bytes = 11 * kGiB;
  EXPECT_EQ(CodeFor(kGiB, device), "");
  EXPECT_EQ(CodeFor(kGiB + 1, device), "memory_exceeded");
  device.promised_bytes = 6 * kGiB;
  device.overcommit = 1;
  EXPECT_EQ(CodeFor(kMiB, device), "memory_exceeded");
}

TEST(Overcommit, WhatIsSetAsideIsNobodyElses) {
  DeviceStatus device = Overcommitted();
  device.promised_bytes = 4 * kGiB;
  EXPECT_EQ(CodeFor(2 * kGiB, device), "");
  EXPECT_EQ(CodeFor(2 * kGiB + 1, device), "memory_exceeded");
  // A guaranteed share that grows is not in its own way.
  ShareTerms now{4 * kGiB, {}, Fraction::One(), 100, 4 * kGiB};
  auto may_become = [&](uint64_t bytes) {
    return ValidateChange({.memory = bytes}, {&now, 1}, {&device, 1}).has_value();
  };
  EXPECT_TRUE(may_become(6 * kGiB));
  EXPECT_FALSE(may_become(6 * kGiB + 1));
  now.memory_request_bytes = 0;
  EXPECT_FALSE(may_become(6 * kGiB));
}

}  // namespace
}  // namespace prorata::agent
