#include "sim/cuda/context/visible_devices.h"

#include <gtest/gtest.h>

namespace prorata::simgpu::driver {
namespace {

using Indices = std::vector<int>;

const std::vector<std::string> kUuids = {"GPU-00aa0000", "GPU-00bb0000", "GPU-00bb1111"};

TEST(VisibleDevicesTest, UnsetShowsAllAndEmptyShowsNone) {
  EXPECT_EQ(VisibleDevices(nullptr, kUuids), (Indices{0, 1, 2}));
  EXPECT_EQ(VisibleDevices("", kUuids), Indices{});
}

TEST(VisibleDevicesTest, NumbersAndUuidsInTheOrderNamed) {
  EXPECT_EQ(VisibleDevices("2,0", kUuids), (Indices{2, 0}));
  EXPECT_EQ(VisibleDevices(" GPU-00bb1111 , 1", kUuids), (Indices{2, 1}));
  EXPECT_EQ(VisibleDevices("GPU-00aa", kUuids), Indices{0});
}

TEST(VisibleDevicesTest, TheFirstBadEntryEndsTheList) {
  EXPECT_EQ(VisibleDevices("1,7,0", kUuids), Indices{1});
  EXPECT_EQ(VisibleDevices("-1", kUuids), Indices{});
  EXPECT_EQ(VisibleDevices("NoDevFiles", kUuids), Indices{});
  EXPECT_EQ(VisibleDevices("1,1,0", kUuids), Indices{1});
  EXPECT_EQ(VisibleDevices("GPU-00bb", kUuids), Indices{});  // fits two
}

}  // namespace
}  // namespace prorata::simgpu::driver
