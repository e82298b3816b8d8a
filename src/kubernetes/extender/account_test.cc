#include "kubernetes/extender/account.h"

#include <gtest/gtest.h>

#include <set>

namespace prorata::kubernetes {
namespace {

using std::chrono::seconds;

ContainerRequest Part(const std::string& name, uint32_t percent, uint64_t units) {
  return {name, ContainerKind::kMain, 1, percent, units};
}

class AccountTest : public testing::Test {
 protected:
  void AddNode(const std::string& name, int gpus) {
    std::vector<NodeGpu> all;
    for (int i = 0; i < gpus; ++i) all.push_back({name + "-" + std::to_string(i), "M", 64, 100});
    account_.SetNode(name, all);
    names_.push_back(name);
  }
  // The node that the account chose; empty: none.
  std::string Choose(const std::string& uid, std::vector<ContainerRequest> requests) {
    const auto found = account_.Filter(uid, requests, names_, now_);
    return found.best ? names_[found.fits[*found.best].node] : "";
  }
  AssignedGpus BindAt(const std::string& uid, std::vector<ContainerRequest> requests,
                      const std::string& node) {
    const auto assigned = account_.Bind(uid, requests, node, now_);
    EXPECT_TRUE(assigned) << assigned.error().message;
    return assigned ? *assigned : AssignedGpus{};
  }

  Account account_;
  std::vector<std::string> names_;
  Account::Time now_ = Account::Time() + seconds(1000);
};

TEST_F(AccountTest, PodsThatAreNotBoundYetHaveTheirPlace) {
  AddNode("n", 1);
  EXPECT_EQ(Choose("a", {Part("main", 30, 32)}), "n");
  EXPECT_EQ(Choose("b", {Part("main", 30, 32)}), "n");
  EXPECT_EQ(Choose("c", {Part("main", 30, 32)}), "");
  EXPECT_EQ(Choose("a", {Part("main", 30, 32)}), "n") << "its own place is no other's";
  account_.Remove("b");
  EXPECT_EQ(Choose("c", {Part("main", 30, 32)}), "n");
}

TEST_F(AccountTest, AnAssumptionEndsByItself) {
  AddNode("n", 1);
  EXPECT_EQ(Choose("a", {Part("main", 60, 32)}), "n");
  now_ += Account::kAssumedFor - seconds(1);
  EXPECT_EQ(Choose("b", {Part("main", 60, 32)}), "");
  now_ += seconds(1);
  EXPECT_EQ(Choose("b", {Part("main", 60, 32)}), "n");
  BindAt("b", {Part("main", 60, 32)}, "n");
  now_ += Account::kAssumedFor;
  EXPECT_EQ(Choose("c", {Part("main", 60, 32)}), "") << "it was bound";
  account_.Unbind("b");
  EXPECT_EQ(Choose("c", {Part("main", 60, 32)}), "n");
}

TEST_F(AccountTest, TheSchedulerMayChooseAnotherNode) {
  AddNode("n", 1);
  AddNode("m", 1);
  const std::string chosen = Choose("a", {Part("main", 60, 32)});
  const std::string other = chosen == "n" ? "m" : "n";
  EXPECT_EQ(BindAt("a", {Part("main", 60, 32)}, other), (AssignedGpus{{"main", {other + "-0"}}}));
  EXPECT_EQ(Choose("b", {Part("main", 60, 32)}), chosen);
  EXPECT_EQ(account_.Bind("c", std::vector{Part("main", 60, 32)}, other, now_).error().code,
            "full");
  EXPECT_EQ(account_.Bind("c", std::vector{Part("main", 60, 32)}, "x", now_).error().code,
            "unknown_node");
}

TEST_F(AccountTest, WhyANodeDoesNotFit) {
  AddNode("small", 1);
  AddNode("big", 2);
  names_.push_back("none");
  const std::vector<ContainerRequest> two = {{"main", ContainerKind::kMain, 2, 100, 64}};
  EXPECT_EQ(Choose("a", two), "big");
  const auto found = account_.Filter("b", two, names_, now_);
  EXPECT_TRUE(found.fits.empty());
  EXPECT_EQ(found.full, std::vector<size_t>{1});
  EXPECT_EQ(found.too_big, (std::vector<size_t>{0, 2}));
}

TEST_F(AccountTest, ContainersOfAPodAreOnOneNode) {
  AddNode("n", 2);
  const std::vector<ContainerRequest> pod = {
      Part("a", 60, 8), Part("b", 60, 8), {"first", ContainerKind::kInit, 1, 60, 8}};
  EXPECT_EQ(Choose("p", pod), "n");
  const AssignedGpus assigned = BindAt("p", pod, "n");
  EXPECT_NE(assigned.at("a"), assigned.at("b"));
  EXPECT_EQ(assigned.at("first"), assigned.at("a"));
  EXPECT_EQ(Choose("q", {Part("a", 30, 8), Part("b", 50, 8)}), "") << "20 of 100 are left on each";
  EXPECT_EQ(Choose("q", {Part("a", 40, 8), Part("b", 40, 8)}), "n");
}

TEST_F(AccountTest, PodsThatOthersBound) {
  AddNode("n", 1);
  const std::vector<ContainerRequest> most = {Part("main", 80, 60)};
  account_.SetBound("a", "n", most, {{"main", {"n-0"}}});
  account_.SetBound("b", "n", most, {{"main", {"n-0"}}});  // more than there is
  account_.SetBound("c", "elsewhere", most, {{"main", {"n-0"}}});
  EXPECT_EQ(Choose("d", {Part("main", 1, 1)}), "");
  account_.Remove("a");
  EXPECT_EQ(Choose("d", {Part("main", 30, 1)}), "") << "b counts in full now";
  EXPECT_EQ(Choose("d", {Part("main", 20, 4)}), "n");
  account_.Remove("d");
  account_.KeepOnlyPods({"c"});
  EXPECT_EQ(Choose("e", {Part("main", 100, 64)}), "n");
  account_.KeepOnlyPods({"c"});
  EXPECT_EQ(account_.counts().assumed, 1u) << "e may be newer than the list";
}

TEST_F(AccountTest, WhatIsBoundStaysWhenTheSchedulerAsksAgain) {
  AddNode("n", 1);
  const std::vector<ContainerRequest> half = {Part("main", 50, 32)};
  account_.SetBound("a", "n", half, {{"main", {"n-0"}}});
  EXPECT_EQ(Choose("a", half), "n");
  EXPECT_EQ(account_.Bind("a", half, "n", now_).error().code, "bound");
  account_.Unbind("a");
  EXPECT_EQ(account_.counts().bound, 1u);
  EXPECT_EQ(Choose("b", {Part("main", 60, 8)}), "");
}

TEST_F(AccountTest, NodesThatChange) {
  AddNode("n", 1);
  account_.SetNode("n", {{"n-0", "M", 24, 80}, {"n-1", "M", 64, 100}});
  EXPECT_EQ(Choose("a", {Part("main", 10, 60)}), "n");
  EXPECT_EQ(BindAt("a", {Part("main", 10, 60)}, "n").at("main"), std::vector<std::string>{"n-1"});
  EXPECT_EQ(Choose("b", {Part("main", 10, 60)}), "");
  EXPECT_EQ(Choose("b", {Part("main", 80, 24)}), "n");
  account_.KeepOnlyNodes({});
  EXPECT_EQ(Choose("c", {Part("main", 1, 1)}), "");
  AddNode("n", 2);
  EXPECT_EQ(Choose("c", {Part("main", 100, 64)}), "") << "a and b are on it";
}

TEST_F(AccountTest, ANewNodeWithoutGpusHasNoRoom) {
  AddNode("n", 1);
  EXPECT_EQ(Choose("a", {Part("main", 10, 8)}), "n");
  AddNode("empty", 0);
  const auto found = account_.Filter("b", {{Part("main", 10, 8)}}, names_, now_);
  EXPECT_EQ(found.fits.size(), 1u);
  EXPECT_EQ(found.too_big, std::vector<size_t>{1});
}

TEST_F(AccountTest, TheFullestGpuThatHasRoomIsTaken) {
  AddNode("n", 4);
  for (int i = 0; i < 20; ++i) {
    const std::string uid = "p" + std::to_string(i);
    ASSERT_EQ(Choose(uid, {Part("main", 10, 4)}), "n");
  }
  // Twenty tenths are on two GPUs: two whole ones are left.
  EXPECT_EQ(Choose("whole", {{"main", ContainerKind::kMain, 2, 100, 64}}), "n");
}

// Two models in one node, and a node of the second alone.
class AccountModelTest : public AccountTest {
 protected:
  AccountModelTest() {
    account_.SetNode("both", {{"u0", "NVIDIA V100", 64, 100}, {"u1", "NVIDIA A100", 64, 100}});
    account_.SetNode("new", {{"u2", "NVIDIA A100", 64, 100}});
    names_ = {"both", "new"};
  }
  static ContainerRequest Of(const std::string& model, uint32_t percent) {
    ContainerRequest request = Part("main", percent, 8);
    request.choice.models.any = {model};
    return request;
  }
  std::string GpuOf(const std::string& uid, const ContainerRequest& request) {
    const std::string node = Choose(uid, {request});
    return node.empty() ? "" : BindAt(uid, {request}, node).at("main").front();
  }
};

TEST_F(AccountModelTest, OnlyGpusOfTheModelAreTaken) {
  EXPECT_EQ(GpuOf("a", Of("v100", 60)), "u0");
  EXPECT_EQ(GpuOf("b", Of("V100", 60)), "") << "the other GPU of the node is of another model";
  EXPECT_EQ((std::set<std::string>{GpuOf("c", Of("a100", 60)), GpuOf("d", Of("a100", 60))}),
            (std::set<std::string>{"u1", "u2"}));
}

TEST_F(AccountModelTest, WhoChoosesNoModelHasAnyGpu) {
  EXPECT_EQ(GpuOf("a", Of("A100", 60)), "u2") << "the node with nothing else to offer";
  EXPECT_NE(GpuOf("b", Part("main", 60, 8)), "");
  EXPECT_NE(GpuOf("c", Part("main", 60, 8)), "");
  EXPECT_EQ(GpuOf("d", Part("main", 60, 8)), "");
}

TEST_F(AccountModelTest, ANodeWithoutTheModelWillNeverDo) {
  const auto full = account_.Filter("a", {{Of("V100", 60)}}, names_, now_);
  EXPECT_EQ(full.fits.size(), 1u);
  EXPECT_EQ(full.too_big, std::vector<size_t>{1});
  const auto later = account_.Filter("b", {{Of("V100", 60)}}, names_, now_);
  EXPECT_EQ(later.full, std::vector<size_t>{0});
  EXPECT_EQ(later.too_big, std::vector<size_t>{1});
}

TEST_F(AccountModelTest, AChoiceOfAllGpusScoresAsNone) {
  account_.SetNode("more", {{"u3", "NVIDIA V100", 32, 50}, {"u4", "NVIDIA V100", 64, 100}});
  names_.push_back("more");
  GpuOf("a", Of("A100", 60));
  ContainerRequest all = Of("nvidia", 30);
  all.choice.uuids.not_of = {"u9"};
  const auto any = account_.Look({{Part("main", 30, 8)}}, names_);
  const auto chosen = account_.Look({{all}}, names_);
  ASSERT_EQ(chosen.fits.size(), 3u);
  EXPECT_EQ(chosen.best, any.best);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(chosen.fits[i].score, any.fits[i].score) << names_[i];
}

TEST_F(AccountModelTest, OfANodesGpusOnlyTheChosenCount) {
  ContainerRequest request = Part("main", 60, 8);
  request.choice.uuids.any = {"u1"};
  EXPECT_EQ(GpuOf("a", request), "u1");
  EXPECT_EQ(GpuOf("b", request), "") << "u0 has room, and was not chosen";
  request.choice.uuids.any = {};
  request.choice.uuids.not_of = {"u2"};
  EXPECT_EQ(GpuOf("c", request), "u0");
  EXPECT_EQ(GpuOf("d", request), "");
  // Names of models go by number, which changes when nodes do.
  account_.RemoveNode("both");
  EXPECT_EQ(GpuOf("e", Of("V100", 60)), "");
  EXPECT_EQ(GpuOf("f", Of("A100", 60)), "u2");
}

class AccountGroupTest : public AccountTest {
 protected:
  static constexpr char kName[] = "team/train";
  // The node that the pod of the group was given; else why not.
  std::string Ask(const std::string& uid, std::vector<ContainerRequest> requests, size_t size) {
    const auto found = account_.FilterGroup(uid, {kName, size}, requests, names_, now_);
    return found.best ? names_[found.fits[*found.best].node] : found.group_waits;
  }
  void SetBound(const std::string& uid, const std::string& node,
                const std::vector<ContainerRequest>& requests) {
    account_.SetBound(uid, node, requests, BindAt(uid, requests, node), kName);
  }
};

TEST_F(AccountGroupTest, WaitsUntilAllOfItAreThere) {
  AddNode("n", 1);
  const std::vector<ContainerRequest> half = {Part("main", 50, 32)};
  EXPECT_EQ(Ask("a", half, 2),
            "pods of the group 'team/train' are placed together, and 1 of 2 are there");
  EXPECT_EQ(Choose("other", {Part("main", 10, 8)}), "n") << "nothing is kept for it meanwhile";
  account_.Remove("other");
  account_.SetWaiting("b", half, kName);
  EXPECT_EQ(Ask("a", half, 2), "n");
  EXPECT_EQ(Choose("other", {Part("main", 10, 8)}), "") << "the place of b";
  EXPECT_EQ(Ask("b", half, 2), "n");
}

TEST_F(AccountGroupTest, AllOfItOrNone) {
  AddNode("n", 1);
  AddNode("m", 1);
  const std::vector<ContainerRequest> most = {Part("main", 60, 40)};
  for (const char* uid : {"a", "b", "c"}) account_.SetWaiting(uid, most, kName);
  EXPECT_EQ(Ask("a", most, 3),
            "of the group 'team/train' 2 of 3 pods fit now, and they are placed together");
  EXPECT_NE(Choose("x", most), "");
  EXPECT_NE(Choose("y", most), "") << "what two of it could have is anybody's";
  account_.Remove("x");
  account_.Remove("y");
  AddNode("o", 1);
  std::set<std::string> nodes;
  for (const char* uid : {"b", "a", "c"}) nodes.insert(Ask(uid, most, 3));
  EXPECT_EQ(nodes, (std::set<std::string>{"n", "m", "o"}));
}

TEST_F(AccountGroupTest, TheRestKeepsItsPlaceWhileOneRuns) {
  AddNode("n", 1);
  const std::vector<ContainerRequest> half = {Part("main", 50, 32)};
  account_.SetWaiting("b", half, kName);
  EXPECT_EQ(Ask("a", half, 2), "n");
  // Nobody is bound: after a time the places are anybody's.
  now_ += Account::kGroupAssumedFor;
  EXPECT_EQ(Choose("x", half), "n");
  account_.Remove("x");
  EXPECT_EQ(Ask("a", half, 2), "n");
  SetBound("a", "n", half);
  now_ += 10 * Account::kGroupAssumedFor;
  EXPECT_EQ(Choose("x", half), "");
  EXPECT_EQ(Ask("b", half, 2), "n");
  // The one that ran is gone, and so is what was kept for its group.
  account_.Remove("a");
  now_ += Account::kGroupAssumedFor;
  EXPECT_EQ(Choose("x", half), "n");
}

TEST_F(AccountGroupTest, WhoComesLaterJoinsThoseThatRun) {
  AddNode("n", 1);
  const std::vector<ContainerRequest> third = {Part("main", 30, 20)};
  account_.SetWaiting("b", third, kName);
  for (const char* uid : {"a", "b"}) {
    EXPECT_EQ(Ask(uid, third, 2), "n");
    SetBound(uid, "n", third);
  }
  // Started again, as another pod.
  account_.Remove("b");
  EXPECT_EQ(Ask("b2", third, 2), "n");
  account_.KeepOnlyPods({"a"});
  EXPECT_EQ(account_.counts().bound, 1u);
}

TEST_F(AccountGroupTest, APlaceThatThePodMayNotHaveIsGivenUp) {
  AddNode("n", 1);
  AddNode("m", 1);
  const std::vector<ContainerRequest> half = {Part("main", 50, 32)};
  account_.SetWaiting("b", half, kName);
  const std::string first = Ask("a", half, 2);
  const std::vector<std::string> other = {first == "n" ? "m" : "n"};
  const auto found = account_.FilterGroup("a", {kName, 2}, half, other, now_);
  ASSERT_EQ(found.fits.size(), 1u);
  EXPECT_EQ(BindAt("a", half, other[0])["main"].size(), 1u);
}

}  // namespace
}  // namespace prorata::kubernetes
