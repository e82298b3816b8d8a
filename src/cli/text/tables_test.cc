#include "cli/text/tables.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace prorata::cli {
namespace {

TEST(TablesTest, EmptyListsAreTheirHeader) {
  EXPECT_EQ(ShareTable({}), "NAME  GPU  MEMORY  COMPUTE  GPU TIME  ENTITLED  MEMBERS\n");
  EXPECT_TRUE(DeviceTable({}).starts_with("GPU  NAME"));
}

TEST(TablesTest, HowGpusReachEachOther) {
  std::vector<api::DeviceStatus> devices(3);
  for (uint32_t i = 0; i < 3; ++i) devices[i].index = i;
  devices[0].links = {{LinkClass::kSelf, 0}, {LinkClass::kNvlink, 18}, {LinkClass::kSystem, 0}};
  devices[1].links = {{LinkClass::kNvlink, 18}, {LinkClass::kSelf, 0}, {LinkClass::kSingle, 0}};
  const std::string table = DeviceTable(devices);
  EXPECT_TRUE(
      table.ends_with("\n\n"
                      "LINKS  GPU 0  GPU 1  GPU 2\n"
                      "GPU 0  -      NV18   SYS\n"
                      "GPU 1  NV18   -      PIX\n"
                      "GPU 2  ?      ?      ?\n"))
      << table;
  EXPECT_EQ(table.find("up to"), std::string::npos);
  devices[0].promised_bytes = 20 * kGiB;
  devices[0].overcommit = 1.5;
  EXPECT_NE(DeviceTable(devices).find("20 GiB (up to 1.5x)"), std::string::npos);
  EXPECT_EQ(DeviceTable(devices).find("BORROWED"), std::string::npos);
  devices[0].limit_bytes = 24 * kGiB;
  devices[0].borrowed_bytes = 3 * kGiB;
  EXPECT_NE(DeviceTable(devices).find("20 GiB (limits 24 GiB, up to 1.5x)  3 GiB     0 B"),
            std::string::npos)
      << DeviceTable(devices);
  devices.resize(1);
  EXPECT_EQ(DeviceTable(devices).find("LINKS"), std::string::npos);
}

TEST(TablesTest, WhatOthersHaveAndTakeOfADevice) {
  api::DeviceStatus device;
  device.name = "X";
  device.uuid = "GPU-1";
  device.total_bytes = 16 * kGiB;
  device.promised_bytes = 4 * kGiB;
  device.foreign_bytes = 2 * kGiB;
  device.promised_request = {300'000};
  device.shares = 1;
  device.busy = 0.412;
  device.others = 0.333;
  EXPECT_EQ(
      DeviceTable({device}),
      "GPU  NAME  MEMORY  PROMISED  OTHERS  COMPUTE PROMISED  GPU TIME  TIME OF OTHERS  SHARES  "
      "UUID\n"
      "0    X     16 GiB  4 GiB     2 GiB   0.3               41.2%     33.3%           1       "
      "GPU-1\n");
  device.others.reset();
  EXPECT_NE(DeviceTable({device}).find("  41.2%     -               1  "), std::string::npos);
}

TEST(TablesTest, AShare) {
  api::ShareStatus share;
  share.name = "train";
  api::ShareDevice& device = share.devices.emplace_back();
  device.used_bytes = 3 * kGiB;
  device.memory_limit_bytes = device.memory_request_bytes = 4 * kGiB;
  device.overhead_bytes = 512 * kMiB;
  device.compute_request = {250'000};
  device.compute_limit = Fraction::One();
  device.achieved = 0.2512;
  device.entitled = 0.5;
  for (int64_t pid = 100; pid < 110; ++pid) share.members.push_back({pid, "x", 0, 0});
  EXPECT_EQ(ShareTable({share}),
            "NAME   GPU  MEMORY                   COMPUTE  GPU TIME  ENTITLED  MEMBERS\n"
            "train  0    3 GiB / 4 GiB (512 MiB)  0.25-1   25.1%     50.0%     "
            "100,101,102,103,104,105,106,107+2\n");
  device.memory_waits = 1;
  device.memory_waiting_ns = 12'900'000'000;
  EXPECT_NE(ShareTable({share}).find("3 GiB / 4 GiB (512 MiB) waits 12 s  "), std::string::npos);
  device.memory_request_bytes = kGiB;
  EXPECT_NE(ShareTable({share}).find("3 GiB / 4 GiB (512 MiB) request 1 GiB waits 12 s  "),
            std::string::npos);
  device.priority = -5;
  share.runs_as_gang = true;
  EXPECT_NE(ShareTable({share}).find("  0.25-1 priority -5 gang  "), std::string::npos);
}

TEST(TablesTest, WhatTheAuditFoundIsMarkedAndExplained) {
  api::ShareStatus share;
  share.name = "x";
  api::ShareDevice& device = share.devices.emplace_back();
  device.used_bytes = 6 * kGiB;
  device.memory_limit_bytes = device.memory_request_bytes = 4 * kGiB;
  device.overhead_bytes = 5 * kGiB;
  device.bypass_suspected = true;
  const std::string table = ShareTable({share});
  EXPECT_NE(table.find("6 GiB / 4 GiB (5 GiB) over BYPASS?  "), std::string::npos) << table;
  EXPECT_NE(table.find("\nBYPASS?: share 'x' on GPU 0 holds 6 GiB, far above its limit of 4 GiB"),
            std::string::npos)
      << table;
  device.bypass_suspected = false;
  device.figures_missing = true;
  const std::string estimated = ShareTable({share});
  EXPECT_NE(estimated.find("(~5 GiB)"), std::string::npos) << estimated;
  EXPECT_NE(estimated.find("\n~: share 'x' on GPU 0"), std::string::npos) << estimated;
}

}  // namespace
}  // namespace prorata::cli
