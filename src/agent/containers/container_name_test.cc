#include "agent/containers/container_name.h"

#include <gtest/gtest.h>

namespace prorata::agent {
namespace {

std::string CommandLine(std::initializer_list<std::string> arguments) {
  std::string text;
  for (const std::string& argument : arguments) text += argument + '\0';
  return text;
}

TEST(ContainerNameTest, OfPodmansMonitor) {
  const std::string line = CommandLine({"/usr/bin/conmon", "--api-version", "1", "-c", "abc", "-u",
                                        "abc", "-r", "/usr/sbin/runc", "-n", "train-1", "-s"});
  EXPECT_EQ(NameOfMonitor(line, "abc"), "train-1");
  EXPECT_EQ(NameOfMonitor(line, "abd"), "") << "another container's";
  EXPECT_EQ(NameOfMonitor(CommandLine({"/bin/sh", "-c", "abc", "-n", "x"}), "abc"), "")
      << "a program that says so is no monitor";
  EXPECT_EQ(NameOfMonitor("", "abc"), "");
  EXPECT_EQ(NameOfMonitor(CommandLine({"conmon", "-c"}), "abc"), "");
}

TEST(ContainerNameTest, TheTaskOfAShim) {
  const auto task = TaskOfShim(CommandLine({"/usr/bin/containerd-shim-runc-v2", "-namespace",
                                            "k8s.io", "-id", "abc", "-address", "/run/c.sock"}));
  ASSERT_TRUE(task);
  EXPECT_EQ(task->name_space, "k8s.io");
  EXPECT_EQ(task->id, "abc");
  EXPECT_FALSE(TaskOfShim(CommandLine({"/bin/containerd-shim-runc-v2", "-namespace", "x"})));
  EXPECT_FALSE(TaskOfShim(CommandLine({"/bin/sh", "-namespace", "x", "-id", "y"})));
  EXPECT_FALSE(TaskOfShim(""));
}

TEST(ContainerNameTest, OfDocker) {
  EXPECT_EQ(NameOfDockerConfig(R"({"ID": "abc", "Name": "/serve"})"), "serve");
  EXPECT_EQ(NameOfDockerConfig(R"({"Name": 3})"), "");
  EXPECT_EQ(NameOfDockerConfig("not json"), "");
  EXPECT_EQ(NameOfDockerConfig(""), "");
}

TEST(ContainerNameTest, OfABundle) {
  EXPECT_EQ(NameOfOciConfig(R"({"annotations": {"io.kubernetes.cri.container-name": "c",
      "io.kubernetes.cri.sandbox-name": "pod", "io.kubernetes.cri.sandbox-namespace": "ns"}})"),
            "ns/pod/c");
  EXPECT_EQ(NameOfOciConfig(R"({"annotations": {"io.kubernetes.container.name": "c",
      "io.kubernetes.pod.name": "pod", "io.kubernetes.pod.namespace": "ns"}})"),
            "ns/pod/c");
  EXPECT_EQ(NameOfOciConfig(R"({"annotations": {"nerdctl/name": "n"}})"), "n");
  EXPECT_EQ(NameOfOciConfig(R"({"annotations": {"nerdctl/name": "n\u001b[1m"}})"), "n?[1m");
  EXPECT_EQ(NameOfOciConfig("{}"), "");
  EXPECT_EQ(NameOfOciConfig("[]"), "");
}

}  // namespace
}  // namespace prorata::agent
