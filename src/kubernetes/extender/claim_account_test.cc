#include "kubernetes/extender/claim_account.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr int kHighest = 10;

json Slice(const std::string& node, int gpus, const char* memory = "16Gi") {
  json devices = json::array();
  for (int i = 0; i < gpus; ++i) {
    devices.push_back(
        {{"name", "gpu-" + std::to_string(i)},
         {"attributes", {{"model", {{"string", "M"}}}}},
         {"capacity", {{"memory", {{"value", memory}}}, {"compute", {{"value", "100"}}}}}});
  }
  return {{"metadata", {{"name", node + "-slice"}, {"uid", "slice-of-" + node}}},
          {"spec",
           {{"driver", "gpu.prorata.dev"}, {"nodeName", node}, {"devices", std::move(devices)}}}};
}

json Claim(const std::string& name, int compute, const char* memory = "4Gi") {
  const json capacity = {{"memory", memory}, {"compute", std::to_string(compute)}};
  return {{"metadata", {{"name", name}, {"namespace", "team"}, {"uid", "uid-of-" + name}}},
          {"spec",
           {{"devices",
             {{"requests",
               {{{"name", "gpu"},
                 {"exactly",
                  {{"deviceClassName", "gpu.prorata.dev"},
                   {"capacity", {{"requests", capacity}}}}}}}}}}}}};
}

json AllocatedClaim(const std::string& name, const std::string& node, const std::string& device,
                    int compute) {
  json claim = Claim(name, compute);
  claim["status"]["allocation"]["devices"]["results"] = {
      {{"driver", "gpu.prorata.dev"},
       {"pool", node},
       {"device", device},
       {"consumedCapacity", {{"memory", "4Gi"}, {"compute", std::to_string(compute)}}}}};
  return claim;
}

json PodWith(const std::string& claim) {
  return {
      {"metadata", {{"name", "p"}, {"namespace", "team"}, {"uid", "uid-of-p"}}},
      {"spec",
       {{"resourceClaims", {{{"name", "gpu"}, {"resourceClaimTemplateName", "template"}}}}}},
      {"status", {{"resourceClaimStatuses", {{{"name", "gpu"}, {"resourceClaimName", claim}}}}}}};
}

class ClaimAccountTest : public testing::Test {
 protected:
  ClaimAccountTest() {
    for (const char* node : {"a", "b", "c"}) account_.SetSlice(Slice(node, 1));
  }
  std::vector<int> Scores(const json& pod) {
    return account_.Scores(pod, std::vector<std::string>{"a", "b", "c", "unknown"}, kHighest);
  }
  // Which node is the best for a claim with so much compute; "": none stands out.
  std::string Best(int compute) {
    account_.SetClaim(Claim("wanted", compute));
    const auto scores = Scores(PodWith("wanted"));
    for (size_t i = 0; i < 3; ++i) {
      if (scores[i] == kHighest) return std::string(1, static_cast<char>('a' + i));
    }
    return "";
  }

  ClaimAccount account_;
};

TEST_F(ClaimAccountTest, TheFullestNodeThatHasRoomIsTheBest) {
  account_.SetClaim(AllocatedClaim("one", "b", "gpu-0", 50));
  EXPECT_EQ(Best(30), "b");
  account_.SetClaim(AllocatedClaim("two", "c", "gpu-0", 70));
  EXPECT_EQ(Best(30), "c") << "it fits exactly";
  EXPECT_EQ(Best(40), "b");
  EXPECT_EQ(Best(60), "a");
  account_.RemoveClaim("uid-of-two");
  EXPECT_EQ(Best(30), "b");
}

TEST_F(ClaimAccountTest, ANodeWithoutRoomOrGpusHasNothing) {
  account_.SetClaim(AllocatedClaim("one", "b", "gpu-0", 50));
  account_.SetClaim(Claim("wanted", 60));
  const auto scores = Scores(PodWith("wanted"));
  EXPECT_EQ(scores[1], 0);
  EXPECT_EQ(scores[3], 0);
}

TEST_F(ClaimAccountTest, ADeallocatedClaimIsToBePlacedAgain) {
  account_.SetClaim(AllocatedClaim("one", "b", "gpu-0", 50));
  EXPECT_EQ(Scores(PodWith("one")), std::vector<int>(4, 0)) << "it has its place";
  account_.SetClaim(Claim("one", 50));
  EXPECT_NE(Scores(PodWith("one")), std::vector<int>(4, 0));
}

TEST_F(ClaimAccountTest, AClaimByItsNameAndAnAlternative) {
  account_.SetClaim(AllocatedClaim("one", "b", "gpu-0", 50));
  json claim = Claim("named", 30);
  json& request = claim["spec"]["devices"]["requests"][0];
  request["firstAvailable"] = json::array({request["exactly"]});
  request.erase("exactly");
  account_.SetClaim(claim);
  json pod = PodWith("");
  pod["spec"]["resourceClaims"][0] = {{"name", "gpu"}, {"resourceClaimName", "named"}};
  EXPECT_EQ(Scores(pod)[1], kHighest);
}

TEST_F(ClaimAccountTest, OtherPodsAndOtherDriversDoNotMatter) {
  EXPECT_EQ(Scores(json::object()), std::vector<int>(4, 0));
  json other = Claim("other", 50);
  other["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "nic.example.com";
  account_.SetClaim(other);
  EXPECT_EQ(Scores(PodWith("other")), std::vector<int>(4, 0));
  EXPECT_EQ(account_.counts().claims, 0u);
  json slice = Slice("d", 1);
  slice["spec"]["driver"] = "nic.example.com";
  account_.SetSlice(slice);
  EXPECT_EQ(account_.counts().nodes, 3u);
}

TEST_F(ClaimAccountTest, SlicesThatComeAndGo) {
  account_.SetClaim(AllocatedClaim("one", "b", "gpu-0", 50));
  // Dropped and written anew, in whatever order this is seen.
  json anew = Slice("b", 1);
  anew["metadata"]["uid"] = "another";
  account_.SetSlice(anew);
  account_.RemoveSlice(Slice("b", 1));
  EXPECT_EQ(Best(30), "b");
  account_.RemoveSlice(anew);
  EXPECT_NE(Best(30), "b");
  account_.SetSlice(anew);
  EXPECT_EQ(Best(30), "b") << "claims of a node that was away count again";
  account_.KeepOnlySlices({"slice-of-a"});
  EXPECT_EQ(Best(30), "a");
  account_.KeepOnlyClaims({});
  EXPECT_EQ(account_.counts().claims, 0u);
}

TEST_F(ClaimAccountTest, WithoutASizeOfMemoryTheComputeCounts) {
  account_.SetClaim(AllocatedClaim("one", "b", "gpu-0", 50));
  json claim = Claim("wanted", 30);
  claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"].erase("memory");
  account_.SetClaim(claim);
  EXPECT_EQ(Scores(PodWith("wanted"))[1], kHighest);
}

}  // namespace
}  // namespace prorata::kubernetes
