#include "cli/tables.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace prorata::cli {
namespace {

TEST(TablesTest, EmptyListsAreTheirHeader) {
  EXPECT_EQ(ShareTable({}), "NAME  GPU  MEMORY  COMPUTE  GPU TIME  ENTITLED  MEMBERS\n");
  EXPECT_TRUE(DeviceTable({}).starts_with("GPU  NAME"));
}

TEST(TablesTest, AShare) {
  protocol::ShareStatus share;
  share.name = "train";
  protocol::ShareDevice& device = share.devices.emplace_back();
  device.used_bytes = 3 * kGiB;
  device.memory_limit_bytes = 4 * kGiB;
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
}

}  // namespace
}  // namespace prorata::cli
