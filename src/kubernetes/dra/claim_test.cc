#include "kubernetes/dra/claim.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr char kUid[] = "a451afc9-b27b-44fb-8f40-5c786695a2c9";
constexpr char kGpu0[] = "GPU-70726f72-0000";
constexpr char kGpu1[] = "GPU-70726f72-0001";

const ClaimReference kReference = {"team", "train-gpu-x", kUid};

std::vector<api::DeviceStatus> Devices() {
  std::vector<api::DeviceStatus> devices(2);
  devices[0].uuid = kGpu0;
  devices[1].uuid = kGpu1;
  return devices;
}

json ResultOf(const std::string& device, const char* memory = "8Gi", const char* compute = "30") {
  return {{"driver", "gpu.prorata.dev"},
          {"pool", "n1"},
          {"device", device},
          {"request", "gpu"},
          {"shareID", "s-1"},
          {"consumedCapacity", {{"memory", memory}, {"compute", compute}}}};
}

// Lists, for a json of one json in braces is an array to GCC and that one to clang.
json ClaimOf(std::vector<json> results, std::vector<json> config = {}) {
  return {{"metadata", {{"name", "train-gpu-x"}, {"uid", kUid}}},
          {"status",
           {{"allocation",
             {{"devices", {{"results", std::move(results)}, {"config", std::move(config)}}}}}}}};
}

json ConfigOf(json parameters, json requests = json::array()) {
  parameters["apiVersion"] = "gpu.prorata.dev/v1alpha1";
  parameters["kind"] = "ShareConfig";
  return {{"source", "FromClaim"},
          {"requests", std::move(requests)},
          {"opaque", {{"driver", "gpu.prorata.dev"}, {"parameters", std::move(parameters)}}}};
}

Result<ClaimPlan> Plan(const json& claim) { return PlanClaim(claim, kReference, "n1", Devices()); }

void ExpectRefused(const json& claim, const char* code, const char* says) {
  const auto plan = Plan(claim);
  ASSERT_FALSE(plan) << claim;
  EXPECT_EQ(plan.error().code, code) << plan.error().message;
  EXPECT_NE(plan.error().message.find(says), std::string::npos) << plan.error().message;
}

TEST(Claim, IsAShareOfWhatWasAllocated) {
  const auto plan = Plan(ClaimOf({ResultOf(DeviceName(kGpu1))}));
  ASSERT_TRUE(plan) << plan.error().message;
  const api::ShareSpec& share = plan->share;
  EXPECT_EQ(share.name, std::string("claim-") + kUid);
  EXPECT_EQ(share.token, std::string("kubernetes-claim-") + kUid);
  EXPECT_EQ(share.gpus, std::vector<std::string>{kGpu1});
  EXPECT_EQ(share.memory, api::MemorySize(uint64_t{8} << 30));
  EXPECT_EQ(share.memory_request, share.memory);
  EXPECT_EQ(share.compute_request, Fraction{300'000});
  EXPECT_EQ(share.compute_limit, Fraction::One());
  EXPECT_TRUE(share.any_container);
  EXPECT_TRUE(share.on.empty());
  ASSERT_EQ(plan->devices.size(), 1u);
  EXPECT_EQ(plan->devices[0].device, "gpu-70726f72-0001");
  EXPECT_EQ(plan->devices[0].request, "gpu");
  EXPECT_EQ(plan->devices[0].share_id, "s-1");
}

TEST(Claim, OfSeveralGpusSaysWhatItHasOfEach) {
  const auto plan =
      Plan(ClaimOf({ResultOf(DeviceName(kGpu1)), ResultOf(DeviceName(kGpu0), "4Gi", "0")}));
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->share.gpus, (std::vector<std::string>{kGpu1, kGpu0}));
  ASSERT_EQ(plan->share.on.size(), 2u);
  EXPECT_EQ(plan->share.on[1].memory, api::MemorySize(uint64_t{4} << 30));
  EXPECT_EQ(plan->share.on[1].compute_request, Fraction{0});
  EXPECT_EQ(plan->devices.size(), 2u);
}

TEST(Claim, LeavesDevicesOfOtherDriversAlone) {
  json other = ResultOf("nic0");
  other["driver"] = "nic.example.com";
  other["request"] = "nic";
  const auto plan = Plan(ClaimOf({other, ResultOf(DeviceName(kGpu0))}));
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->devices.size(), 1u);
  ExpectRefused(ClaimOf({other}), "not_allocated", "nothing of gpu.prorata.dev");
}

TEST(Claim, TheClaimsConfigCountsOverTheClasss) {
  const auto plan = Plan(ClaimOf({ResultOf(DeviceName(kGpu0))},
                                 {ConfigOf({{"weight", 200}, {"computeLimit", 50}}),
                                  ConfigOf({{"computeLimit", 40}, {"onFull", "wait=30s"}}, {"gpu"}),
                                  ConfigOf({{"priority", 7}}, {"another"})}));
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->share.weight, 200u);
  EXPECT_EQ(plan->share.compute_limit, Fraction{400'000});
  EXPECT_EQ(plan->share.on_full.wait_ms, 30'000u);
  EXPECT_EQ(plan->share.priority, 0);
}

TEST(Claim, FailsClosed) {
  const std::string gpu = DeviceName(kGpu0);
  json other_uid = ClaimOf({ResultOf(gpu)});
  other_uid["metadata"]["uid"] = "another";
  ExpectRefused(other_uid, "claim_changed", "team/train-gpu-x");
  ExpectRefused(json::object(), "claim_changed", "''");
  json waiting = ClaimOf({ResultOf(gpu)});
  waiting.erase("status");
  ExpectRefused(waiting, "not_allocated", "nothing of");
  json no_capacity = ResultOf(gpu);
  no_capacity.erase("consumedCapacity");
  ExpectRefused(ClaimOf({no_capacity}), "bad_allocation", "DRAConsumableCapacity");
  json no_compute = ResultOf(gpu);
  no_compute["consumedCapacity"].erase("compute");
  ExpectRefused(ClaimOf({no_compute}), "bad_allocation", "how much compute");
  json admin = ResultOf(gpu);
  admin["adminAccess"] = true;
  ExpectRefused(ClaimOf({admin}), "bad_allocation", "adminAccess");
  json elsewhere = ResultOf(gpu);
  elsewhere["pool"] = "n2";
  ExpectRefused(ClaimOf({elsewhere}), "bad_allocation", "pool 'n2'");
  ExpectRefused(ClaimOf({ResultOf("gpu-gone")}), "no_such_device", "'gpu-gone'");
  ExpectRefused(ClaimOf({ResultOf(gpu), ResultOf(gpu)}), "bad_allocation", "twice");
  json second = ResultOf(DeviceName(kGpu1));
  second["request"] = "gpu2";
  ExpectRefused(ClaimOf({ResultOf(gpu), second}), "many_requests", "'gpu2'");
  ExpectRefused(ClaimOf({ResultOf(gpu, "0")}), "bad_allocation", "0 bytes");
  ExpectRefused(ClaimOf({ResultOf(gpu, "8Gi", "101")}), "bad_allocation", "101 %");
  ExpectRefused(ClaimOf({ResultOf(gpu, "much")}), "bad_quantity", "'much'");
  ExpectRefused(ClaimOf({ResultOf(gpu)}, {ConfigOf({{"computelimit", 50}})}), "bad_config",
                "computelimit");
}

TEST(Claim, TakesAnyJson) {
  for (
      const char* text :
      {"[]", "3", R"({"metadata":3})",
       R"({"metadata":{"uid":"a451afc9-b27b-44fb-8f40-5c786695a2c9"},"status":{"allocation":{"devices":{"results":[3]}}}})",
       R"({"metadata":{"uid":"a451afc9-b27b-44fb-8f40-5c786695a2c9"},"status":{"allocation":{"devices":{"results":{}}}}})"}) {
    EXPECT_FALSE(Plan(json::parse(text))) << text;
  }
}

TEST(ClaimNames, AreReadBack) {
  EXPECT_EQ(ClaimOfShare(ShareNameOfClaim(kUid)), kUid);
  for (const char* name :
       {"train", "claim-", "claim-train", "claim-A451afc9-b27b-44fb-8f40-5c786695a2c9",
        "claim-a451afc9-b27b-44fb-8f40-5c786695a2c9x"}) {
    EXPECT_FALSE(ClaimOfShare(name)) << name;
  }
  EXPECT_EQ(DeviceName("GPU-AB_c.1"), "gpu-ab-c-1");
}

TEST(ShareConfig, RefusesWhatItDoesNotKnow) {
  const std::pair<json, const char*> cases[] = {
      {{{"computeLimit", 0}}, "from 1 to 100"},
      {{{"computeLimit", "50"}}, "\"50\""},
      {{{"computeLimit", 50.5}}, "50.5"},
      {{{"weight", 0}}, "weight is 0"},
      {{{"priority", 101}}, "-100 to 100"},
      {{{"onFull", "sometimes"}}, "sometimes"},
      {{{"gang", true}}, "a text in quotes"},
      {{{"yieldWithin", "2"}}, "yieldWithin"},
      {{{"memory", "9Gi"}}, "no field 'memory'"},
      {{{"weight", 18446744073709551615ull}}, "from 1 to"},
  };
  for (const auto& [parameters, says] : cases) {
    ExpectRefused(ClaimOf({ResultOf(DeviceName(kGpu0))}, {ConfigOf(parameters)}), "bad_config",
                  says);
  }
  json other = ConfigOf(json::object());
  other["opaque"]["parameters"]["kind"] = "GpuConfig";
  ExpectRefused(ClaimOf({ResultOf(DeviceName(kGpu0))}, {other}), "bad_config", "GpuConfig");
}

}  // namespace
}  // namespace prorata::kubernetes
