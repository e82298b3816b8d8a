#include "agent/containers/mounts.h"

#include <gtest/gtest.h>

namespace prorata::agent {
namespace {

constexpr char kHost[] =
    "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
    "23 22 0:25 / /run rw,nosuid - tmpfs tmpfs rw\n"
    "24 22 0:26 /part /mnt/with\\040space rw - tmpfs tmpfs rw\n";
constexpr char kContainer[] =
    "90 80 0:60 / / rw - overlay overlay rw\n"
    "91 90 0:25 /prorata/shares/train /run/prorata/share ro - tmpfs tmpfs rw\n";

TEST(MountsTest, TheShareOfAContainer) {
  const auto own = FolderAt(kHost, "/run/prorata/shares/train");
  ASSERT_TRUE(own);
  EXPECT_EQ(own->device, "0:25");
  EXPECT_EQ(own->path, "/prorata/shares/train");
  EXPECT_EQ(MountedAt(kContainer, "/run/prorata/share"), own);
  EXPECT_NE(MountedAt(kContainer, "/run/prorata/share"), FolderAt(kHost, "/run/prorata/shares/a"));
  EXPECT_EQ(MountedAt(kContainer, "/run/prorata"), std::nullopt);
  EXPECT_EQ(MountedAt("", "/run/prorata/share"), std::nullopt);
}

TEST(MountsTest, WhatIsOnTopCounts) {
  const std::string covered =
      std::string(kContainer) + "92 91 0:99 / /run/prorata/share ro - fuse x rw\n";
  EXPECT_EQ(MountedAt(covered, "/run/prorata/share")->device, "0:99");
  const std::string twice = std::string(kHost) + "25 22 0:77 / /run rw - tmpfs tmpfs rw\n";
  EXPECT_EQ(FolderAt(twice, "/run/x")->device, "0:77");
}

TEST(MountsTest, OddPaths) {
  EXPECT_EQ(FolderAt(kHost, "/running/x")->device, "254:0") << "not below /run";
  EXPECT_EQ(FolderAt(kHost, "/run")->path, "/");
  EXPECT_EQ(FolderAt(kHost, "/mnt/with space/a")->path, "/part/a");
  EXPECT_EQ(FolderAt("short line\n\n", "/x"), std::nullopt);
}

}  // namespace
}  // namespace prorata::agent
