#include "kubernetes/kai/kai_shares.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace prorata::kubernetes {
namespace {

using std::chrono::steady_clock;

constexpr char kPodUid[] = "a451afc9-b27b-44fb-8f40-5c786695a2c9";
constexpr char kShare[] = "kai-a451afc9-b27b-44fb-8f40-5c786695a2c9";

// The agent, with one GPU of 16 GiB: a share that is there under the same token is answered.
struct OneGpuAgent final : Agent {
  std::map<std::string, api::ShareSpec> shares;
  bool gone = false;

  Result<NodeState> List(Deadline) override {
    if (gone) return Fail("no_agent", "cannot reach the agent");
    NodeState state;
    api::DeviceStatus& device = state.devices.emplace_back();
    device.uuid = "GPU-a";
    device.total_bytes = 16 * kGiB;
    for (const auto& [name, spec] : shares) {
      api::ShareStatus& share = state.shares.emplace_back();
      share.name = name;
      share.kept_by.kind = api::KeptBy::Kind::kHold;
    }
    return state;
  }
  Result<api::ShareStatus> Create(const api::ShareSpec& spec, Deadline) override {
    const auto [found, made] = shares.try_emplace(*spec.name, spec);
    if (!made && found->second.token != spec.token) return Fail("name_in_use", "of another");
    return api::ShareStatus();
  }
  Result<api::ShareStatus> Update(const std::string&, const api::ShareChange&, Deadline) override {
    ADD_FAILURE() << "nothing changes a share of KAI's";
    return api::ShareStatus();
  }
  Status Remove(const std::string& name, Deadline) override {
    if (gone) return Fail("no_agent", "cannot reach the agent");
    shares.erase(name);
    return {};
  }
};

class KaiSharesTest : public testing::Test {
 protected:
  static Agent::Deadline Soon() { return steady_clock::now() + std::chrono::milliseconds(50); }
  static RuntimePod Pod(const std::string& sandbox = "s1", const std::string& fraction = "0.5") {
    return {sandbox, kPodUid, "team", "train", {{"gpu-fraction", fraction}}, true};
  }
  static RuntimeContainer Container(const std::string& name = "main") {
    return {.id = "c",
            .pod_id = "s1",
            .name = name,
            .environment = {"NVIDIA_VISIBLE_DEVICES=GPU-a", "GPU_PORTION=0.50"},
            .cdi_devices = {},
            .mount_targets = {}};
  }
  size_t RemoveStale() {
    const auto removed = shares_.RemoveStale(Soon());
    EXPECT_TRUE(removed) << removed.error().message;
    return removed ? removed->size() : 0;
  }

  OneGpuAgent agent_;
  int stale_ = 0;
  KaiShares shares_{agent_, [this] { ++stale_; }};
};

TEST_F(KaiSharesTest, AShareLivesAsLongAsItsPodsSandbox) {
  shares_.Synchronized({}, {});
  shares_.PodRuns(Pod());
  const auto devices = shares_.CreateContainer(Pod(), Container(), Soon());
  ASSERT_TRUE(devices) << devices.error().message;
  EXPECT_EQ(*devices, std::vector<std::string>{std::string("prorata.dev/share=") + kShare});
  EXPECT_EQ(agent_.shares.at(kShare).memory->bytes, 8 * kGiB);
  ASSERT_TRUE(shares_.CreateContainer(Pod(), Container(), Soon())) << "it was started again";
  EXPECT_EQ(RemoveStale(), 0u);
  stale_ = 0;
  shares_.PodEnded(Pod());
  EXPECT_EQ(stale_, 1);
  EXPECT_EQ(RemoveStale(), 1u);
  EXPECT_TRUE(agent_.shares.empty());
  shares_.PodEnded(Pod());  // StopPodSandbox, then RemovePodSandbox
  EXPECT_EQ(RemoveStale(), 0u);
}

// A sandbox died, and the kubelet made the pod another one before it removed the first.
TEST_F(KaiSharesTest, TheEndOfAnEarlierSandboxIsNotThePods) {
  shares_.Synchronized({}, {});
  ASSERT_TRUE(shares_.CreateContainer(Pod("s1"), Container(), Soon()));
  shares_.PodRuns(Pod("s2"));
  shares_.PodEnded(Pod("s1"));
  EXPECT_EQ(RemoveStale(), 0u);
  shares_.PodEnded(Pod("s2"));
  EXPECT_EQ(RemoveStale(), 1u);
}

TEST_F(KaiSharesTest, WhatEndedWhileNobodyListenedIsRemovedOnceItIsKnown) {
  shares_.Synchronized({}, {});
  ASSERT_TRUE(shares_.CreateContainer(Pod(), Container(), Soon()));
  shares_.Disconnected();
  EXPECT_EQ(RemoveStale(), 0u) << "nothing is known";
  shares_.Synchronized({Pod()}, {});
  EXPECT_EQ(RemoveStale(), 0u);
  shares_.Disconnected();
  RuntimePod ended = Pod();
  ended.runs = false;
  shares_.Synchronized({ended}, {Container()});
  EXPECT_EQ(RemoveStale(), 0u) << "a container of it runs, whatever is said of the sandbox";
  RuntimeContainer stopped = Container();
  stopped.stopped = true;
  shares_.Synchronized({ended}, {stopped});
  EXPECT_EQ(RemoveStale(), 1u);
}

// containerd reports no end of sandboxes that are older than itself.
TEST_F(KaiSharesTest, PodsThatWereFoundAreAskedAboutOnceNoContainerOfThemRuns) {
  shares_.Synchronized({}, {});
  ASSERT_TRUE(shares_.CreateContainer(Pod(), Container(), Soon()));
  EXPECT_FALSE(*shares_.Doubtful(Soon()));
  shares_.ContainerStopped(Pod(), Container());
  EXPECT_TRUE(*shares_.Doubtful(Soon())) << "it was not seen to begin";
  shares_.PodRuns(Pod());
  ASSERT_TRUE(shares_.CreateContainer(Pod(), Container(), Soon()));
  shares_.ContainerStopped(Pod(), Container());
  EXPECT_FALSE(*shares_.Doubtful(Soon())) << "the end of this one will be reported";
  shares_.Disconnected();
  EXPECT_FALSE(*shares_.Doubtful(Soon()));
  shares_.Synchronized({Pod()}, {Container()});
  EXPECT_FALSE(*shares_.Doubtful(Soon()));
  stale_ = 0;
  shares_.ContainerStopped(Pod(), Container());
  EXPECT_EQ(stale_, 1);
  EXPECT_TRUE(*shares_.Doubtful(Soon()));
  shares_.Confirm({Pod()}, {});
  EXPECT_EQ(RemoveStale(), 0u) << "its sandbox runs: the container may start again";
  ASSERT_TRUE(shares_.CreateContainer(Pod(), Container(), Soon()));
  EXPECT_FALSE(*shares_.Doubtful(Soon()));
  shares_.Confirm({}, {});
  EXPECT_EQ(RemoveStale(), 0u) << "what was said before the container began";
  shares_.ContainerStopped(Pod(), Container());
  RuntimePod ended = Pod();
  ended.runs = false;
  shares_.Confirm({ended}, {});
  EXPECT_EQ(RemoveStale(), 1u);
  EXPECT_FALSE(*shares_.Doubtful(Soon()));
}

TEST_F(KaiSharesTest, SharesOfOthersStay) {
  agent_.shares["kai-train"] = agent_.shares["claim-x"] = {};
  shares_.Synchronized({}, {});
  EXPECT_EQ(RemoveStale(), 0u);
  EXPECT_EQ(agent_.shares.size(), 2u);
}

TEST_F(KaiSharesTest, OtherContainersNeedNoAgent) {
  agent_.gone = true;
  shares_.Synchronized({}, {});
  RuntimeContainer other = Container();
  other.environment.clear();
  const auto devices = shares_.CreateContainer(Pod(), other, Soon());
  ASSERT_TRUE(devices);
  EXPECT_TRUE(devices->empty());
}

TEST_F(KaiSharesTest, WithoutItsShareAContainerIsNotMade) {
  shares_.Synchronized({}, {});
  const auto bad = shares_.CreateContainer(Pod("s1", "1.5"), Container(), Soon());
  ASSERT_FALSE(bad);
  EXPECT_TRUE(bad.error().message.starts_with("prorata: the annotation gpu-fraction of pod "))
      << bad.error().message;
  ASSERT_TRUE(shares_.CreateContainer(Pod(), Container(), Soon()));
  EXPECT_EQ(shares_.CreateContainer(Pod(), Container("other"), Soon()).error().code, "name_in_use")
      << "KAI gives a part to one container of a pod";
  agent_.gone = true;
  EXPECT_EQ(shares_.CreateContainer(Pod(), Container(), Soon()).error().code, "no_agent");
  // What could not be removed then is removed later.
  shares_.PodEnded(Pod());
  EXPECT_FALSE(shares_.RemoveStale(Soon()));
  agent_.gone = false;
  EXPECT_EQ(RemoveStale(), 1u);
}

}  // namespace
}  // namespace prorata::kubernetes
