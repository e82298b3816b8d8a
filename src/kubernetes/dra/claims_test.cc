#include "kubernetes/dra/claims.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

constexpr char kClaimUid[] = "a451afc9-b27b-44fb-8f40-5c786695a2c9";
constexpr char kOther[] = "b451afc9-b27b-44fb-8f40-5c786695a2c9";
constexpr char kGpu[] = "GPU-0";

const ClaimReference kClaimReference = {"team", "train", kClaimUid};

Agent::Deadline Soon() { return steady_clock::now() + std::chrono::seconds(60); }

// What the cluster has.
struct FakeApi final : ClaimApi {
  std::map<std::string, json> claims;     // by name
  std::map<std::string, json> allocated;  // by UID
  int lists = 0;
  bool reachable = true;

  Result<json> Get(const ClaimReference& claim) override {
    if (!reachable) return Fail("api_unreachable", "no answer");
    const auto found = claims.find(claim.name);
    if (found == claims.end()) return Fail("not_found", "no claim");
    return found->second;
  }
  Result<std::map<std::string, json>> ListAllocated(const std::string&) override {
    ++lists;
    if (!reachable) return Fail("api_unreachable", "no answer");
    return allocated;
  }
  void Add(const std::string& uid) {
    claims["train"] = {
        {"metadata", {{"uid", uid}}},
        {"status",
         {{"allocation",
           {{"devices",
             {{"results",
               {{{"driver", "gpu.prorata.dev"},
                 {"pool", "n1"},
                 {"device", "gpu-0"},
                 {"request", "gpu"},
                 {"consumedCapacity", {{"memory", "1Gi"}, {"compute", "10"}}}}}}}}}}}}};
    allocated[uid] = claims["train"];
  }
};

// The agent, which answers a share that is there under the same token.
struct FakeAgent final : Agent {
  std::mutex mutex;
  NodeState state;
  std::map<std::string, std::string> tokens;
  std::optional<Error> broken = {};
  std::atomic<int> inside = 0;
  std::atomic<int> most_inside = 0;
  int made = 0;

  FakeAgent() {
    state.devices.resize(1);
    state.devices[0].uuid = kGpu;
  }
  Result<NodeState> List(Deadline) override {
    const std::lock_guard lock(mutex);
    if (broken) return std::unexpected(*broken);
    return state;
  }
  Result<api::ShareStatus> Create(const api::ShareSpec& spec, Deadline) override {
    most_inside = std::max(most_inside.load(), ++inside);
    std::this_thread::yield();
    --inside;
    const std::lock_guard lock(mutex);
    if (broken) return std::unexpected(*broken);
    for (const api::ShareStatus& share : state.shares) {
      if (share.name == *spec.name && tokens[share.name] == *spec.token) return share;
      if (share.name == *spec.name) return Fail("name_in_use", "there already");
    }
    api::ShareStatus share;
    share.name = *spec.name;
    share.kept_by.kind = api::KeptBy::Kind::kHold;
    tokens[share.name] = *spec.token;
    state.shares.push_back(share);
    ++made;
    return share;
  }
  Result<api::ShareStatus> Update(const std::string&, const api::ShareChange&, Deadline) override {
    return Fail("unused", "no update");
  }
  Status Remove(const std::string& name, Deadline) override {
    const std::lock_guard lock(mutex);
    if (broken) return std::unexpected(*broken);
    std::erase_if(state.shares, [&](const auto& share) { return share.name == name; });
    return {};
  }
};

struct ClaimsTest : testing::Test {
  FakeApi api;
  FakeAgent agent;
  std::atomic<int> changes = 0;
  Claims claims{api, agent, "n1", [this] { ++changes; }};
};

TEST_F(ClaimsTest, PrepareTwiceIsOneShare) {
  api.Add(kClaimUid);
  for (int i = 0; i < 2; ++i) {
    const auto prepared = claims.Prepare(kClaimReference, Soon());
    ASSERT_TRUE(prepared) << prepared.error().message;
    ASSERT_EQ(prepared->size(), 1u);
    EXPECT_EQ(prepared->front().cdi_devices,
              std::vector<std::string>{std::string("prorata.dev/share=claim-") + kClaimUid});
  }
  EXPECT_EQ(agent.made, 1);
  ASSERT_TRUE(claims.Unprepare(kClaimReference, Soon()));
  ASSERT_TRUE(claims.Unprepare(kClaimReference, Soon()));
  EXPECT_TRUE(agent.state.shares.empty());
  EXPECT_EQ(changes, 4);
}

TEST_F(ClaimsTest, NoAnswerIsAnErrorAndNeverEmpty) {
  const auto refused = [this](const char* code) {
    const auto prepared = claims.Prepare(kClaimReference, Soon());
    ASSERT_FALSE(prepared);
    EXPECT_EQ(prepared.error().code, code);
  };
  refused("not_found");
  api.Add(kOther);
  refused("claim_changed");
  api.Add(kClaimUid);
  api.reachable = false;
  refused("api_unreachable");
  api.reachable = true;
  agent.broken = Error{"no_agent", "no agent runs"};
  refused("no_agent");
  EXPECT_FALSE(claims.Unprepare(kClaimReference, Soon()));
  agent.broken.reset();
  // A share of that name that is not the claim's.
  agent.state.shares.resize(1);
  agent.state.shares[0].name = ShareNameOfClaim(kClaimUid);
  refused("name_in_use");
}

TEST_F(ClaimsTest, CallsForOneClaimRunOneAfterAnother) {
  api.Add(kClaimUid);
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 50; ++turn)
        good += claims.Prepare(kClaimReference, Soon()).has_value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 400);
  EXPECT_EQ(agent.made, 1);
  EXPECT_EQ(agent.most_inside, 1);
}

TEST_F(ClaimsTest, AClaimThatIsBusyIsAnErrorAtTheDeadline) {
  KeyLocks locks;
  auto held = locks.Lock("a", Soon());
  ASSERT_TRUE(held);
  EXPECT_TRUE(locks.Lock("b", Soon()));
  EXPECT_FALSE(locks.Lock("a", steady_clock::now() + std::chrono::milliseconds(5)));
  held.reset();
  EXPECT_TRUE(locks.Lock("a", Soon()));
}

TEST_F(ClaimsTest, SharesOfClaimsThatAreGoneAreRemoved) {
  api.Add(kClaimUid);
  ASSERT_TRUE(claims.Prepare(kClaimReference, Soon()));
  api::ShareStatus stale = agent.state.shares[0];
  stale.name = ShareNameOfClaim(kOther);
  agent.state.shares.push_back(stale);
  api::ShareStatus person = stale;
  person.name = "claim-train";  // somebody's own
  agent.state.shares.push_back(person);
  api.reachable = false;
  EXPECT_FALSE(claims.RemoveStale(Soon()));
  EXPECT_EQ(agent.state.shares.size(), 3u);
  api.reachable = true;
  EXPECT_EQ(*claims.RemoveStale(Soon()), std::vector<std::string>{kOther});
  ASSERT_EQ(agent.state.shares.size(), 2u);
  EXPECT_EQ(agent.state.shares[0].name, ShareNameOfClaim(kClaimUid));
}

}  // namespace
}  // namespace prorata::kubernetes
