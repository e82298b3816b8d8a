// The events of the Trace Event Format that a device's entries become.

#include "api/chrome_trace.h"
#include "base/units.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace prorata::api {
namespace {

using nlohmann::json;

constexpr int64_t kBegin = 5'000 * kMs;

class ChromeTraceTest : public ::testing::Test {
 protected:
  ChromeTraceTest() {
    device_.uuid = "GPU-1";
    device_.name = "Simulated";
    device_.begins_ns = kBegin;
    device_.trace.now_ns = kBegin + 1'000 * kMs;
    device_.trace.since_ns = kBegin;
    device_.trace.shares[1] = {"train", true};
  }
  TraceEntry& Add(TraceKind kind, int64_t ms, uint32_t lane = 1) {
    TraceEntry& entry = device_.trace.entries.emplace_back(TraceEntry{});
    entry.kind = kind;
    entry.time_ns = kBegin + ms * kMs;
    entry.lane = lane;
    return entry;
  }
  TraceEntry& State(TraceState state, int64_t ms, int64_t charged_ms = 0, uint32_t lane = 1) {
    TraceEntry& entry = Add(TraceKind::kState, ms, lane);
    entry.state = state;
    entry.value_ns = charged_ms * kMs;
    return entry;
  }
  // Events of one phase ("X": slices).
  std::vector<json> Events(const std::string& phase) const {
    const json trace = json::parse(ChromeTrace({&device_, 1}, "test"));
    std::vector<json> found;
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") == phase) found.push_back(event);
    }
    return found;
  }
  std::vector<std::string> Names(const std::string& phase) const {
    std::vector<std::string> names;
    for (const json& event : Events(phase)) names.push_back(event.at("name"));
    return names;
  }

  TracedDevice device_;
};

TEST_F(ChromeTraceTest, AnEmptyTraceIsOne) {
  EXPECT_TRUE(json::parse(ChromeTrace({}, "test")).at("traceEvents").empty());
  EXPECT_TRUE(Events("X").empty());
  EXPECT_EQ(Events("M").front().at("args").at("name"), "GPU 0: Simulated (GPU-1)");
}

TEST_F(ChromeTraceTest, SlicesFollowOneAnother) {
  State(TraceState::kRuns, 100).lag_us = 2'000;
  State(TraceState::kDrains, 113, 13).lag_us = -3'000;
  State(TraceState::kWaitsLimit, 114, 14).held_us = 50'000;
  State(TraceState::kIdle, 300, 14);
  const auto slices = Events("X");
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0].at("name"), "runs");
  EXPECT_EQ(slices[0].at("ts"), 100'000);
  EXPECT_EQ(slices[0].at("dur"), 13'000);
  EXPECT_EQ(slices[0].at("args").at("charged_ms"), 13.0);
  EXPECT_EQ(slices[0].at("args").at("lag_begin_ms"), 2.0);
  EXPECT_EQ(slices[0].at("args").at("lag_end_ms"), -3.0);
  EXPECT_EQ(slices[2].at("name"), "waits: at its limit");
  EXPECT_EQ(slices[2].at("args").at("limit_holds_until_us"), 164'000);
  EXPECT_EQ(Names("i"), (std::vector<std::string>{"revoked"}));
}

TEST_F(ChromeTraceTest, WhatLastsIsCutAtBothEnds) {
  State(TraceState::kRuns, -100);
  State(TraceState::kDrains, 20, 50);
  State(TraceState::kRuns, 30, 60);
  const auto slices = Events("X");
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0].at("ts"), 0);
  EXPECT_EQ(slices[0].at("dur"), 20'000);
  EXPECT_FALSE(slices[0].at("args").contains("charged_ms")) << "not all of it is in the trace";
  EXPECT_EQ(slices[2].at("ts").get<int>() + slices[2].at("dur").get<int>(), 1'000'000);
}

TEST_F(ChromeTraceTest, AKeyframeGoesOnOrBegins) {
  Add(TraceKind::kKeyframe, -50).state = TraceState::kRuns;
  TraceEntry& second = Add(TraceKind::kKeyframe, 50);
  second.state = TraceState::kRuns;
  second.value_ns = 30 * kMs;
  State(TraceState::kIdle, 60, 40);
  const auto slices = Events("X");
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].at("ts"), 0);
  EXPECT_EQ(slices[0].at("dur"), 60'000);
}

TEST_F(ChromeTraceTest, GpuTimeIsCountedBetweenKeyframes) {
  Add(TraceKind::kKeyframe, -50).value_ns = -3 * kMs;
  Add(TraceKind::kKeyframe, 0).value_ns = 0;
  Add(TraceKind::kKeyframe, 100).value_ns = 25 * kMs;
  Add(TraceKind::kKeyframe, 600).value_ns = 75 * kMs;  // it slept until 500
  std::vector<std::pair<int, double>> counted;
  for (const json& event : Events("C")) {
    if (event.at("name") != "GPU time of train, %") continue;
    counted.emplace_back(event.at("ts").get<int>(), event.at("args").at("%").get<double>());
  }
  const std::vector<std::pair<int, double>> expected = {
      {0, 6}, {0, 25}, {100'000, 0}, {500'000, 50}};
  EXPECT_EQ(counted, expected);
}

TEST_F(ChromeTraceTest, ANameThatIsUsedAgainIsAnotherTrack) {
  device_.trace.shares[2] = {"train", false};
  State(TraceState::kRuns, 10).lag_us = 1;
  Add(TraceKind::kShareEnded, 20);
  Add(TraceKind::kShareBegun, 30, 2);
  State(TraceState::kRuns, 40, 0, 2).lag_us = 1;
  std::vector<std::string> tracks;
  for (const json& event : Events("M")) {
    if (event.at("name") == "thread_name") tracks.push_back(event.at("args").at("name"));
  }
  EXPECT_EQ(tracks, (std::vector<std::string>{"how it is shared", "train", "train (2)"}));
  const auto slices = Events("X");
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].at("dur"), 10'000) << "it ends with its share";
  EXPECT_NE(slices[0].at("tid"), slices[1].at("tid"));
  for (const json& event : Events("C")) {
    EXPECT_EQ(event.at("name").get<std::string>().find("lag of train (2)"), std::string::npos)
        << "a lag that is not the reader's";
  }
  EXPECT_FALSE(slices[1].at("args").contains("lag_begin_ms"));
}

TEST_F(ChromeTraceTest, NamesAreEscaped) {
  device_.name = "a \"quoted\" \\ name\n\xff";
  device_.trace.shares[1].name = "team/\"x\"";
  State(TraceState::kRuns, 10);
  EXPECT_EQ(Events("X").size(), 1u);
}

TEST_F(ChromeTraceTest, InstantsOfShareAndDevice) {
  Add(TraceKind::kAudit, 10).value_ns = 25 * kMs;
  Add(TraceKind::kLate, 20, 0).value_ns = 3 * kMs;
  Add(TraceKind::kOutage, 30, 0);
  Add(TraceKind::kEvent, 40).event = EventKind::kPersistentKernel;
  State(TraceState::kBlocked, 50);
  State(TraceState::kRuns, 60);
  const auto instants = Events("i");
  ASSERT_EQ(instants.size(), 5u);
  EXPECT_EQ(instants[0].at("args").at("charged_more_ms"), 25.0);
  EXPECT_EQ(instants[1].at("name"), "agent late");
  EXPECT_EQ(instants[3].at("name"), "persistent_kernel");
  EXPECT_EQ(instants[4].at("name"), "released");
}

}  // namespace
}  // namespace prorata::api
