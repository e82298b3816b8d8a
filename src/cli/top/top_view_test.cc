#include "cli/top/top_view.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/text/tables.h"

namespace prorata::cli {
namespace {

api::ShareStatus Share(const std::string& name, double busy, uint64_t used_gib = 1,
                       uint32_t gpu = 0) {
  api::ShareStatus share;
  share.name = name;
  api::ShareDevice& on = share.devices.emplace_back();
  on.index = gpu;
  on.achieved = busy;
  on.used_bytes = used_gib * kGiB;
  on.memory_limit_bytes = on.memory_request_bytes = 4 * kGiB;
  on.compute_limit = Fraction::One();
  return share;
}

std::string Order(const TopSnapshot& snapshot, const TopView& view) {
  std::string names;
  for (const TopRow& row : RowsOf(snapshot, view)) names += row.share->name;
  return names;
}

TEST(TopViewTest, SortsByEachKeyAndBackwards) {
  TopSnapshot snapshot;
  snapshot.shares = {Share("a", 0.2, 3), Share("c", 0.5, 2), Share("b", 0.3, 1, 1)};
  snapshot.shares[0].devices[0].waiting_part = 0.2;
  snapshot.shares[1].devices[0].at_limit_part = 0.3;
  snapshot.shares[2].devices[0].entitled = 1;
  const std::pair<TopSort, const char*> orders[] = {
      {TopSort::kTime, "cba"},    {TopSort::kEntitled, "bac"}, {TopSort::kMemory, "acb"},
      {TopSort::kWaiting, "cab"}, {TopSort::kName, "abc"},     {TopSort::kGpu, "acb"}};
  for (const auto& [sort, order] : orders) {
    EXPECT_EQ(Order(snapshot, {.sort = sort}), order) << NameOf(sort);
    EXPECT_EQ(SortOf(NameOf(sort)), sort);
  }
  EXPECT_EQ(Order(snapshot, {.sort = TopSort::kName, .reversed = true}), "cba");
  // Equals stay in the order of their names, whichever way.
  EXPECT_EQ(Order(snapshot, {.sort = TopSort::kEntitled, .reversed = true}), "acb");
  EXPECT_FALSE(SortOf("size").has_value());
}

TEST(TopViewTest, AShareHasARowForEachGpu) {
  TopSnapshot snapshot;
  snapshot.shares = {Share("a", 0.2)};
  snapshot.shares[0].devices.push_back(snapshot.shares[0].devices[0]);
  snapshot.shares[0].devices[1].index = 3;
  snapshot.shares[0].devices[1].achieved = 0.9;
  const auto rows = RowsOf(snapshot, {});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].on->index, 3u);
}

TEST(TopViewTest, Keys) {
  TopView view;
  EXPECT_EQ(PressKey('m', 9, 4, &view), KeyEffect::kRedraw);
  EXPECT_EQ(view.sort, TopSort::kMemory);
  for (size_t i = 0; i < std::size(kTopSorts); ++i) PressKey('s', 9, 4, &view);
  EXPECT_EQ(view.sort, TopSort::kMemory) << "round and round";
  PressKey('r', 9, 4, &view);
  EXPECT_TRUE(view.reversed);
  EXPECT_EQ(PressKey(' ', 9, 4, &view), KeyEffect::kRefresh);
  EXPECT_EQ(PressKey('x', 9, 4, &view), KeyEffect::kNone);
  EXPECT_EQ(PressKey('?', 9, 4, &view), KeyEffect::kRedraw);
  EXPECT_TRUE(view.help);
  EXPECT_EQ(PressKey('m', 9, 4, &view), KeyEffect::kRedraw);
  EXPECT_FALSE(view.help);
  EXPECT_EQ(PressKey('q', 9, 4, &view), KeyEffect::kQuit);
}

TEST(TopViewTest, ScrollsAsFarAsThereIsSomething) {
  TopView view;
  const auto scroll = [&view](int key) {
    PressKey(key, 9, 4, &view);
    return view.scroll;
  };
  EXPECT_EQ(scroll(kTopKeyUp), 0u);
  EXPECT_EQ(scroll(kTopKeyDown), 1u);
  EXPECT_EQ(scroll(kTopKeyPageDown), 5u);
  EXPECT_EQ(scroll('j'), 5u) << "the last is shown";
  EXPECT_EQ(scroll(kTopKeyPageUp), 1u);
  EXPECT_EQ(scroll(kTopKeyEnd), 5u);
  EXPECT_EQ(scroll('k'), 4u);
  EXPECT_EQ(scroll(kTopKeyHome), 0u);
  PressKey(kTopKeyDown, 3, 4, &view);
  EXPECT_EQ(view.scroll, 0u) << "all fit";
  PressKey(kTopKeyPageDown, 3, 0, &view);  // a window without a row
  EXPECT_EQ(view.scroll, 1u);
}

TEST(TopViewTest, WordsForEachReason) {
  api::ShareDevice on;
  EXPECT_EQ(WhyWords(on), "runs");
  on.achieved = 0.1;
  on.waiting_part = 0.254;
  on.at_limit_part = 0.6;
  on.memory_waiting_ns = 12'900'000'000;
  on.compute_limit.ppm = 200'000;
  const std::pair<ThrottleReason, const char*> words[] = {
      {ThrottleReason::kNoProgram, "no program runs"},
      {ThrottleReason::kDoesNotAnswer, "does not answer: stopped?"},
      {ThrottleReason::kNonPreemptible, "cannot be preempted: its kernels do not end"},
      {ThrottleReason::kWaitsForMemory, "suspended for memory 12 s"},
      {ThrottleReason::kAtLimit, "at its limit 60%"},
      {ThrottleReason::kWaitsForOthers, "waits for other shares 25%"},
      {ThrottleReason::kIdle, "idle 5%"},
      {ThrottleReason::kOverMemoryLimit, "over its memory limit"},
  };
  for (const auto& [reason, text] : words) {
    on.throttle_reasons = {reason};
    EXPECT_EQ(WhyWords(on), text);
  }
  on.persistent_kernels = 1;
  on.throttle_reasons = {ThrottleReason::kNonPreemptible};
  EXPECT_EQ(WhyWords(on), "cannot be preempted: a persistent kernel");
  on.throttle_reasons = {ThrottleReason::kAtLimit, ThrottleReason::kOverMemoryLimit};
  EXPECT_EQ(WhyWords(on), "at its limit 60%; over its memory limit");
  on.compute_limit = Fraction::One();
  EXPECT_EQ(WhyWords(on), "at the elastic ceiling 60%; over its memory limit");
}

TEST(TopViewTest, NumbersThatAreNoParts) {
  EXPECT_EQ(PercentText(0.1234), "12.3%");
  EXPECT_EQ(PercentText(1e300), "?");
  EXPECT_EQ(PercentText(-1), "?");
  EXPECT_EQ(PercentText(0.0 / 0.0), "?");
}

TEST(TopViewTest, TheTable) {
  TopSnapshot snapshot;
  snapshot.shares = {Share("a", 0.2), Share("b", 0.5)};
  snapshot.shares[0].ended = true;
  snapshot.shares[1].devices[0].throttle_reasons = {ThrottleReason::kWaitsForOthers};
  api::DeviceStatus& device = snapshot.devices.emplace_back();
  device.busy = 0.7;
  device.used_bytes = 2 * kGiB;
  device.total_bytes = 16 * kGiB;
  EXPECT_EQ(
      TopTable(snapshot, {}, "12:03:04"),
      "TIME      NAME        GPU  GPU TIME  ENTITLED  LIMIT   WAITED  AT LIMIT  MEMORY          "
      "WHY\n"
      "12:03:04  -           0    70.0%     -         -       -       -         2 GiB / 16 GiB  -\n"
      "12:03:04  b           0    50.0%     0.0%      100.0%  0.0%    0.0%      1 GiB / 4 GiB   "
      "waits for other shares 0%\n"
      "12:03:04  a (ending)  0    20.0%     0.0%      100.0%  0.0%    0.0%      1 GiB / 4 GiB   "
      "runs\n");
}

TEST(TopViewTest, TheObject) {
  TopSnapshot snapshot;
  snapshot.shares = {Share("a", 0.2), Share("b", 0.5)};
  snapshot.shares[0].members.push_back({7, "\xff\xfe", 0, 0});  // a name of no encoding
  const std::string text = TopJson(snapshot, {}, 123);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto object = nlohmann::json::parse(text);
  EXPECT_EQ(object["time_unix_ms"], 123);
  EXPECT_EQ(object["shares"][0]["name"], "b");
  EXPECT_EQ(object["shares"][1]["devices"][0]["achieved"], 0.2);
  EXPECT_TRUE(object["devices"].empty());
}

}  // namespace
}  // namespace prorata::cli
