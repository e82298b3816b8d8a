#include "agent/runtime/cgroup.h"

#include <gtest/gtest.h>

namespace prorata::agent {
namespace {

const std::string kId(64, 'a');

struct Tasks final : TaskQuestion {
  bool IsTask(const std::string& name_space, const std::string& id) const override {
    return name_space == "default" && id == "train";
  }
};

// The path of the only hierarchy, v2's; "ENGINE ID PATH" or "none".
std::string Read(const std::string& path) {
  const auto group = ParseCgroup("0::" + path + "\n", Tasks());
  if (!group) return "none";
  EXPECT_EQ(group->hierarchy, "");
  return group->engine + " " + (group->id == kId ? "ID" : group->id) + " " +
         (path == group->path ? "whole" : group->path);
}

TEST(CgroupTest, Podman) {
  EXPECT_EQ(Read("/machine.slice/libpod-" + kId + ".scope"), "podman ID whole");
  EXPECT_EQ(Read("/libpod_parent/libpod-" + kId), "podman ID whole");
  EXPECT_EQ(Read("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + kId +
                 ".scope/container/deeper"),
            "podman ID /user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + kId +
                ".scope");
  EXPECT_EQ(Read("/libpod_parent/conmon"), "none");
}

TEST(CgroupTest, Docker) {
  EXPECT_EQ(Read("/docker/" + kId), "docker ID whole");
  EXPECT_EQ(Read("/system.slice/docker-" + kId + ".scope"), "docker ID whole");
  EXPECT_EQ(Read("/" + kId), "none") << "whose it is nobody knows";
}

TEST(CgroupTest, ContainersOfKubernetes) {
  EXPECT_EQ(Read("/kubepods/burstable/pod1234-5678/" + kId), "containerd ID whole");
  EXPECT_EQ(Read("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/"
                 "cri-containerd-" +
                 kId + ".scope"),
            "containerd ID whole");
  EXPECT_EQ(Read("/system.slice/containerd.service/kubepods-pod12.slice:cri-containerd:" + kId),
            "containerd ID whole");
  EXPECT_EQ(Read("/kubepods.slice/kubepods-pod12.slice/crio-" + kId + ".scope"), "cri-o ID whole");
  EXPECT_EQ(Read("/kubepods/pod12/crio-" + kId), "cri-o ID whole");
}

TEST(CgroupTest, ContainerdsOwn) {
  EXPECT_EQ(Read("/default/train"), "containerd train whole");
  EXPECT_EQ(Read("/default/train/below"), "containerd train /default/train");
  EXPECT_EQ(Read("/default/other"), "none");
  EXPECT_EQ(Read("/default"), "none");
}

TEST(CgroupTest, NoContainer) {
  for (const char* path : {"/", "", "/user.slice/user-1000.slice/session-1.scope",
                           "/libpod-short.scope", "/docker/ABC", "//", "/docker-.scope"}) {
    EXPECT_EQ(Read(path), "none") << path;
  }
  for (const char* text : {"", "\n", "0", "0:", "::", "x:y:z", ":::::"}) {
    EXPECT_FALSE(ParseCgroup(text, Tasks())) << text;
  }
}

TEST(CgroupTest, AContainerInAContainerIsPartOfIt) {
  const std::string inner(64, 'b');
  EXPECT_EQ(Read("/docker/" + kId + "/docker/" + inner), "docker ID /docker/" + kId);
}

TEST(CgroupTest, OfSeveralHierarchies) {
  const auto v1 = ParseCgroup("9:name=systemd:/libpod_parent/libpod-" + kId +
                                  "\n4:memory:/libpod_parent/libpod-" + kId + "\n0::/\n",
                              Tasks());
  ASSERT_TRUE(v1);
  EXPECT_EQ(v1->hierarchy, "name=systemd");
  const auto both = ParseCgroup(
      "4:memory:/docker/" + kId + "\n0::/system.slice/docker-" + kId + ".scope\n", Tasks());
  ASSERT_TRUE(both);
  EXPECT_EQ(both->hierarchy, "");
}

TEST(CgroupTest, WhoseEngine) {
  EXPECT_EQ(UserOfGroup("/user.slice/user-1000.slice/user@1000.service/x"), 1000u);
  EXPECT_EQ(UserOfGroup("/machine.slice/libpod-1.scope"), std::nullopt);
  EXPECT_EQ(UserOfGroup("/user.slice/user-x.slice"), std::nullopt);
  EXPECT_EQ(UserOfGroup("/user-99999999999999.slice"), std::nullopt);
}

TEST(CgroupTest, WhereTheHierarchiesAre) {
  const auto mounts = ParseCgroupMounts(
      "30 1 0:26 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
      "31 1 0:27 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,name=systemd\n"
      "32 1 0:28 /part /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
      "33 1 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
      "34 1 0:30 / /proc rw - proc proc rw\nshort\n");
  ASSERT_EQ(mounts.size(), 4u);
  EXPECT_EQ(mounts[0].hierarchy, "memory");
  EXPECT_EQ(mounts[1].hierarchy, "name=systemd");
  EXPECT_EQ(mounts[1].folder, "/sys/fs/cgroup/systemd");
  EXPECT_EQ(mounts[2].hierarchy, "");
  EXPECT_EQ(mounts[2].root, "/part");
  EXPECT_EQ(mounts[3].hierarchy, "cpu,cpuacct");
}

}  // namespace
}  // namespace prorata::agent
