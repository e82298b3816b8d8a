#include "driver/pci_place.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace prorata::driver {
namespace {

namespace fs = std::filesystem;

class PciPlaceTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/prorata-sysfs-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    sysfs_ = name;
    fs::create_directories(sysfs_ / "bus/pci/devices");
  }
  void TearDown() override { fs::remove_all(sysfs_); }

  void Add(const std::string& path, const std::string& node) {
    const fs::path device = sysfs_ / "devices" / path;
    fs::create_directories(device);
    std::ofstream(device / "numa_node") << node << "\n";
    fs::create_directory_symlink("../../../devices/" + path,
                                 sysfs_ / "bus/pci/devices" / device.filename());
  }

  fs::path sysfs_;
};

TEST_F(PciPlaceTest, IsWhatLinuxSays) {
  Add("pci0000:16/0000:16:01.0/0000:1a:00.0", "1");
  Add("pci0001:00/0001:00:02.0", "-1");
  const PciPlace far = FindPciPlace(PciAddress(0, 0x1a, 0), sysfs_);
  EXPECT_EQ(far.numa_node, 1);
  EXPECT_EQ(far.root, "pci0000:16");
  const PciPlace one = FindPciPlace(PciAddress(1, 0, 2), sysfs_);
  EXPECT_FALSE(one.numa_node);
  EXPECT_EQ(one.root, "pci0001:00");
  const PciPlace none = FindPciPlace("0000:ff:00.0", sysfs_);
  EXPECT_FALSE(none.numa_node);
  EXPECT_EQ(none.root, "");
}

}  // namespace
}  // namespace prorata::driver
