#include "agent/server/metrics.h"

#include <gtest/gtest.h>

#include "agent/share/events.h"
#include "base/bytes.h"

namespace prorata::agent {
namespace {

using api::EventCounts;
using api::EventKind;

bool Has(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(MetricsTest, EveryFigureIsThatOfTheStatus) {
  api::ShareStatus share;
  share.name = "a";
  share.members.resize(2);
  for (uint32_t index : {0u, 3u}) {
    api::ShareDevice& on = share.devices.emplace_back();
    on.index = index;
    on.uuid = "GPU-" + std::to_string(index);
    on.memory_limit_bytes = 4 * kGiB + index;
    on.used_bytes = 2 * kGiB + 1;
    on.overhead_bytes = 5;
    on.granted_bytes = 3 * kGiB;
    on.memory_waits = 7;
    on.memory_waiting_ns = 1'500'000'000;
    on.device_time_ns = 2'250'000'000;
    on.busy_time_ns = 1'750'000'000;
    on.achieved = 0.25;
    on.busy = 0.125;
    on.entitled = 0.5;
    on.active = index == 3;
    on.compute_request = {300'000};
    on.compute_limit = {750'000};
    on.weight = 200;
    on.priority = -5;
    on.waiting_part = 0.0625;
    on.at_limit_part = 0.375;
    on.undrained_part = 0.03125;
    on.refusals = 11;
    on.bypass_suspected = index == 3;
    on.persistent_kernels = 1;
  }
  api::DeviceStatus device;
  device.index = 3;
  device.uuid = "GPU-3";
  device.total_bytes = 80 * kGiB;
  device.used_bytes = 6 * kGiB;
  device.foreign_bytes = 4 * kGiB;
  device.promised_bytes = 8 * kGiB;
  device.busy = 0.75;
  device.others = 0.125;
  EventCounts counts{};
  counts[static_cast<size_t>(EventKind::kRefusal)] = 11;

  const std::string text = MetricsText({&share, 1}, {&device, 1}, counts);
  const std::string on_0 = "{share=\"a\",gpu=\"0\",uuid=\"GPU-0\"} ";
  const std::string on_3 = "{share=\"a\",gpu=\"3\",uuid=\"GPU-3\"} ";
  const auto with_reason = [](const std::string& reason) {
    return "{share=\"a\",gpu=\"3\",uuid=\"GPU-3\",reason=\"" + reason + "\"} ";
  };
  const std::string gpu = "{gpu=\"3\",uuid=\"GPU-3\"} ";
  for (const std::string& line : {
           "prorata_share_memory_limit_bytes" + on_0 + "4294967296",
           "prorata_share_memory_limit_bytes" + on_3 + "4294967299",
           "prorata_share_memory_used_bytes" + on_0 + "2147483649",
           "prorata_share_memory_overhead_bytes" + on_0 + "5",
           "prorata_share_memory_granted_bytes" + on_0 + "3221225472",
           "prorata_share_memory_waiting" + on_0 + "7",
           "prorata_share_memory_waiting_seconds" + on_0 + "1.5",
           "prorata_share_gpu_seconds_total" + on_0 + "2.25",
           "prorata_share_busy_seconds_total" + on_0 + "1.75",
           "prorata_share_gpu_time_ratio" + on_0 + "0.25",
           "prorata_share_busy_ratio" + on_0 + "0.125",
           "prorata_share_entitled_ratio" + on_0 + "0.5",
           "prorata_share_entitled_ratio" + on_3 + "0.5",
           "prorata_share_compute_request_ratio" + on_0 + "0.3",
           "prorata_share_compute_limit_ratio" + on_0 + "0.75",
           "prorata_share_weight" + on_0 + "200",
           "prorata_share_priority" + on_0 + "-5",
           "prorata_share_held_back_ratio" + with_reason("for_others") + "0.0625",
           "prorata_share_held_back_ratio" + with_reason("at_limit") + "0.375",
           "prorata_share_held_back_ratio" + with_reason("stalled") + "0.03125",
           "prorata_share_refusals_total" + on_3 + "11",
           "prorata_share_bypass_suspected" + on_0 + "0",
           "prorata_share_bypass_suspected" + on_3 + "1",
           "prorata_share_persistent_kernels" + on_0 + "1",
           std::string("prorata_share_members{share=\"a\"} 2"),
           "prorata_device_memory_total_bytes" + gpu + "85899345920",
           "prorata_device_memory_used_bytes" + gpu + "6442450944",
           "prorata_device_memory_foreign_bytes" + gpu + "4294967296",
           "prorata_device_memory_promised_bytes" + gpu + "8589934592",
           "prorata_device_gpu_time_ratio" + gpu + "0.75",
           "prorata_device_others_ratio" + gpu + "0.125",
           std::string("prorata_events_total{kind=\"refusal\"} 11"),
           std::string("prorata_events_total{kind=\"figures_missing\"} 0"),
           std::string("# TYPE prorata_share_gpu_seconds_total counter"),
           std::string("# TYPE prorata_share_memory_used_bytes gauge"),
           std::string("# TYPE prorata_events_total counter"),
       }) {
    EXPECT_TRUE(Has(text, line)) << line << "\nis not in\n" << text;
  }
}

TEST(MetricsTest, WhatIsSetAsideAndWhatIsBorrowed) {
  api::ShareStatus share;
  share.name = "a";
  share.devices.emplace_back().memory_request_bytes = kGiB;
  api::DeviceStatus device;
  device.promised_bytes = 8 * kGiB;
  device.limit_bytes = 9 * kGiB;
  device.borrowed_bytes = 2 * kGiB;
  const std::string text = MetricsText({&share, 1}, {&device, 1}, {});
  const std::string gpu = "{gpu=\"0\",uuid=\"\"} ";
  for (const std::string& line : {
           std::string("prorata_share_memory_request_bytes{share=\"a\",gpu=\"0\",uuid=\"\"} ") +
               "1073741824",
           "prorata_device_memory_promised_bytes" + gpu + "8589934592",
           "prorata_device_memory_limit_bytes" + gpu + "9663676416",
           "prorata_device_memory_borrowed_bytes" + gpu + "2147483648",
       }) {
    EXPECT_TRUE(Has(text, line)) << line << "\nis not in\n" << text;
  }
}

TEST(MetricsTest, TheContainerOfAShare) {
  api::ShareStatus share;
  share.name = "a";
  EXPECT_EQ(MetricsText({&share, 1}, {}, {}).find("container_info{"), std::string::npos);
  share.container = {{"podman", "0123", "box"}};
  EXPECT_TRUE(Has(MetricsText({&share, 1}, {}, {}),
                  "prorata_share_container_info{share=\"a\",container=\"box\",container_id="
                  "\"0123\",engine=\"podman\"} 1"));
  share.container = {{"containerd", "0123", "team/train/main"}};
  EXPECT_TRUE(Has(MetricsText({&share, 1}, {}, {}),
                  "prorata_share_container_info{share=\"a\",container=\"main\",container_id="
                  "\"0123\",engine=\"containerd\",namespace=\"team\",pod=\"train\"} 1"));
}

TEST(MetricsTest, WhatNvmlDoesNotTellIsNoFigure) {
  const api::DeviceStatus device;
  const std::string text = MetricsText({}, {&device, 1}, {});
  EXPECT_NE(text.find("# TYPE prorata_device_others_ratio gauge\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("prorata_device_others_ratio{"), std::string::npos) << text;
}

TEST(MetricsTest, WithoutSharesThereIsStillText) {
  const std::string text = MetricsText({}, {}, {});
  EXPECT_TRUE(Has(text, "prorata_events_total{kind=\"agent_started\"} 0"));
  EXPECT_EQ(text.find("share=\""), std::string::npos);
}

TEST(MetricsTest, EventsAreCountedThatTheRingHasLost) {
  VirtualClock clock;
  Events events(clock, [] { return 0; });
  for (size_t i = 0; i < 2 * Events::kKept; ++i) events.Add({.kind = EventKind::kMemberJoined});
  events.Add({.kind = EventKind::kRefusal, .count = 40});
  EXPECT_EQ(events.counts()[static_cast<size_t>(EventKind::kMemberJoined)], 2 * Events::kKept);
  EXPECT_EQ(events.counts()[static_cast<size_t>(EventKind::kRefusal)], 40u);
}

}  // namespace
}  // namespace prorata::agent
