#include "api/start_wait.h"
#include "agent/share/validate_share.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/control.h"
#include "base/bytes.h"

namespace prorata::agent {
namespace {

using namespace api;

using nlohmann::json;

TEST(StartWaitTest, ARequestKeepsItsWait) {
  ControlRequest request;
  request.op = ControlOp::kCreateShare;
  request.share.name = "a";
  EXPECT_FALSE(DecodeRequest(EncodeRequest(request))->wait);
  request.wait = StartWait{};
  auto read = DecodeRequest(EncodeRequest(request));
  ASSERT_TRUE(read && read->wait);
  EXPECT_FALSE(read->wait->within_ms || read->wait->since_ms);
  request.wait = {{5000, 77}};
  read = DecodeRequest(EncodeRequest(request));
  ASSERT_TRUE(read && read->wait);
  EXPECT_EQ(read->wait->within_ms, 5000u);
  EXPECT_EQ(read->wait->since_ms, 77u);
}

TEST(StartWaitTest, WhatIsNoWaitIsRefused) {
  for (const char* wait :
       {"1", "null", "[]", R"({"within": 5})", R"({"within_ms": -1})", R"({"within_ms": "5"})",
        R"({"since_ms": 1e300})", R"({"since_ms": 18446744073709551615})"}) {
    const auto read =
        DecodeRequest(std::string(R"({"op": "create_share", "share": {}, "wait": )") + wait + "}");
    ASSERT_FALSE(read) << wait;
    EXPECT_EQ(read.error().code, "malformed") << wait;
  }
}

TEST(StartWaitTest, WhoWaitsIsReadBackAsWritten) {
  const WaitingShare waiting = {3,          77, 1500, 812,       1000, "a",
                                {"0", "2"}, 2,  kGiB, {250'000}, true, "no room"};
  const auto read = WaitingShareFromJson(ToJson(waiting));
  ASSERT_TRUE(read);
  EXPECT_EQ(ToJson(*read), ToJson(waiting));
  EXPECT_EQ(read->compute_request, waiting.compute_request);
  EXPECT_FALSE(WaitingShareFromJson(json::object()));
  EXPECT_FALSE(WaitingShareFromJson(json::array()));
}

TEST(StartWaitTest, PlacesHaveTheirWords) {
  for (const auto& [place, words] :
       std::initializer_list<std::pair<uint32_t, const char*>>{{1, "first"},
                                                               {2, "2nd"},
                                                               {3, "3rd"},
                                                               {4, "4th"},
                                                               {11, "11th"},
                                                               {12, "12th"},
                                                               {21, "21st"},
                                                               {112, "112th"}}) {
    EXPECT_EQ(PlaceInWords(place), words);
  }
}

TEST(StartWaitTest, WhatIsKeptForOneInLineIsRefusedToOthers) {
  DeviceStatus device;
  device.uuid = "GPU-1";
  device.total_bytes = 16 * kGiB;
  ShareSpec spec;
  spec.memory = kGiB;
  ASSERT_TRUE(ValidateShare(spec, {{device}}, {}));
  device.kept_for = "share 'big'";
  for (const bool named : {false, true}) {
    if (named) spec.gpus = {"0"};
    const auto refused = ValidateShare(spec, {{device}}, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, "others_wait");
    EXPECT_TRUE(MayPass(refused.error()));
  }
  EXPECT_TRUE(ValidateShare(spec, {{Emptied(device)}}, {}));
  spec.memory = 17 * kGiB;
  EXPECT_FALSE(ValidateShare(spec, {{Emptied(device)}}, {})) << "it can never fit";
}

}  // namespace
}  // namespace prorata::agent
