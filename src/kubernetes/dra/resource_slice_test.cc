#include "kubernetes/dra/resource_slice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "kubernetes/dra/claim.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr char kGpuUid[] = "a451afc9-b27b-44fb-8f40-5c786695a2c9";

std::vector<api::DeviceStatus> Devices(size_t count) {
  std::vector<api::DeviceStatus> devices(count);
  for (size_t i = 0; i < count; ++i) {
    devices[i].index = static_cast<uint32_t>(i);
    devices[i].uuid = "GPU-" + std::to_string(i);
    devices[i].name = "A GPU";
    devices[i].total_bytes = 16 * kGiB;
  }
  return devices;
}

api::ShareStatus ShareOn(const std::string& name, const std::string& uuid, uint64_t bytes,
                         uint32_t ppm) {
  api::ShareStatus share;
  share.name = name;
  api::ShareDevice& on = share.devices.emplace_back();
  on.uuid = uuid;
  on.memory_request_bytes = bytes;
  on.compute_request = {ppm};
  return share;
}

std::vector<std::string> NamesOf(const json& devices) {
  std::vector<std::string> names;
  for (const json& device : devices) names.push_back(device["name"]);
  return names;
}

using Names = std::vector<std::string>;

TEST(ResourceSlice, ADeviceIsAGpuThatClaimsShare) {
  const json device = SliceDevices(Devices(1), {})[0];
  EXPECT_EQ(device["name"], "gpu-0");
  EXPECT_EQ(device["allowMultipleAllocations"], true);
  EXPECT_EQ(device["attributes"]["uuid"]["string"], "GPU-0");
  EXPECT_EQ(device["capacity"]["memory"], json::parse(R"({"value": "16Gi", "requestPolicy":
      {"default": "16Gi", "validRange": {"min": "256Mi", "step": "256Mi"}}})"));
  EXPECT_EQ(device["capacity"]["compute"], json::parse(R"({"value": "100", "requestPolicy":
      {"default": "0", "validRange": {"min": "0", "step": "1"}}})"));
}

TEST(ResourceSlice, AttributesAreWhatTheAgentKnows) {
  auto devices = Devices(4);
  // GPUs 1 and 3 over NVLink, by GPU 2.
  for (auto& device : devices) device.links.resize(4);
  for (const auto& [one, other] : {std::pair(1, 2), std::pair(2, 3)}) {
    devices[one].links[other].kind = devices[other].links[one].kind = LinkClass::kNvlink;
  }
  devices[3].compute_capability = "9.0";
  devices[3].driver_version = "580.65.06";
  devices[3].numa_node = 0;
  devices[3].pcie_root = "pci0000:16";
  devices[2].driver_version = "560.35";
  devices[1].driver_version = "none";
  const json list = SliceDevices(devices, {});
  EXPECT_EQ(list[3]["attributes"], json::parse(R"({
      "uuid": {"string": "GPU-3"}, "model": {"string": "A GPU"}, "index": {"int": 3},
      "mode": {"string": "shared"}, "memoryMiB": {"int": 16384},
      "cudaComputeCapability": {"version": "9.0.0"}, "driverVersion": {"version": "580.65.6"},
      "numaNode": {"int": 0}, "nvlinkIsland": {"int": 1},
      "resource.kubernetes.io/pcieRoot": {"string": "pci0000:16"}})"));
  EXPECT_EQ(list[2]["attributes"]["driverVersion"]["version"], "560.35.0");
  EXPECT_FALSE(list[1]["attributes"].contains("driverVersion"));
  EXPECT_EQ(list[1]["attributes"]["nvlinkIsland"]["int"], 1);
  for (const char* absent : {"numaNode", "nvlinkIsland", "cudaComputeCapability"}) {
    EXPECT_FALSE(list[0]["attributes"].contains(absent)) << absent;
  }
}

TEST(ResourceSlice, AGpuWhoseDriverDoesNotAnswerTakesNothingNew) {
  auto devices = Devices(2);
  devices[0].driver_unresponsive_ms = 4'999;
  devices[1].driver_unresponsive_ms = 5'000;
  json list = SliceDevices(devices, {});
  EXPECT_FALSE(list[0].contains("taints"));
  EXPECT_EQ(list[1]["taints"], json::parse(R"([
      {"key": "gpu.prorata.dev/driver-unresponsive", "effect": "NoSchedule"}])"));
  // The API server adds a time, or does not know taints at all.
  const NodeReference node{"n1", "1-2"};
  json said = MakeSlice(node, list, 3);
  said["spec"]["devices"][1]["taints"][0]["timeAdded"] = "2026-11-25T08:00:00Z";
  EXPECT_TRUE(SaysTheSame(said, node, list));
  said["spec"]["devices"][1].erase("taints");
  EXPECT_FALSE(SaysTheSame(said, node, list));
  EXPECT_TRUE(DropTaints(&list));
  EXPECT_TRUE(SaysTheSame(said, node, list));
  EXPECT_FALSE(DropTaints(&list));
}

TEST(ResourceSlice, TheFullestComesFirst) {
  const std::string claim = ShareNameOfClaim(kGpuUid);
  EXPECT_EQ(NamesOf(SliceDevices(Devices(3), {})), (Names{"gpu-0", "gpu-1", "gpu-2"}));
  const std::vector<api::ShareStatus> shares = {ShareOn(claim, "GPU-2", 8 * kGiB, 300'000),
                                                ShareOn(claim, "GPU-1", 2 * kGiB, 300'000)};
  EXPECT_EQ(NamesOf(SliceDevices(Devices(3), shares)), (Names{"gpu-2", "gpu-1", "gpu-0"}));
}

TEST(ResourceSlice, CapacityIsWhatClaimsMayHaveTogether) {
  auto devices = Devices(1);
  devices[0].foreign_bytes = kGiB + 1;
  const std::vector<api::ShareStatus> shares = {
      ShareOn(ShareNameOfClaim(kGpuUid), "GPU-0", 8 * kGiB, 500'000),  // the cluster counts that
      ShareOn("train", "GPU-0", 2 * kGiB, 305'000)};
  const json capacity = SliceDevices(devices, shares)[0]["capacity"];
  EXPECT_EQ(capacity["memory"]["value"], "13056Mi");  // 13 GiB less a byte, in steps
  EXPECT_EQ(capacity["compute"]["value"], "69");
}

TEST(ResourceSlice, OffersLessByWhatAShareGrewAndNoMoreByWhatItShrank) {
  api::ShareSpec spec;
  spec.gpus = {"GPU-0"};
  spec.memory_request = api::MemorySize(4 * kGiB);
  spec.compute_request = {300'000};
  const AllocatedClaims allocated = {{kGpuUid, {{}, spec}}};
  const auto capacity = [&](uint64_t bytes, uint32_t ppm) {
    const std::vector<api::ShareStatus> shares = {
        ShareOn(ShareNameOfClaim(kGpuUid), "GPU-0", bytes, ppm)};
    const json device = SliceDevices(Devices(1), shares, allocated)[0]["capacity"];
    return device["memory"]["value"].get<std::string>() + " " +
           device["compute"]["value"].get<std::string>();
  };
  EXPECT_EQ(capacity(4 * kGiB, 300'000), "16Gi 100");
  EXPECT_EQ(capacity(10 * kGiB, 500'000), "10Gi 80");
  EXPECT_EQ(capacity(kGiB, 0), "16Gi 100");
}

TEST(ResourceSlice, LeavesOutWhatNoClaimCanHave) {
  auto devices = Devices(4);
  devices[0].exclusive = "whole";
  devices[1].foreign_bytes = 16 * kGiB - 300 * kMiB;
  devices[2].foreign_bytes = 17 * kGiB;
  EXPECT_EQ(NamesOf(SliceDevices(devices, {})), (Names{"gpu-3"}));
  const std::vector<api::ShareStatus> all = {ShareOn("train", "GPU-3", kGiB, 1'000'000)};
  EXPECT_EQ(SliceDevices(devices, all), json::array());
}

TEST(ResourceSlice, IsWrittenOnlyWhereItSaysSomethingElse) {
  const NodeReference node = {"n1", "uid-1"};
  const json devices = SliceDevices(Devices(2), {});
  json slice = MakeSlice(node, devices, 4);
  EXPECT_EQ(slice["metadata"]["name"], "n1-gpu.prorata.dev");
  EXPECT_EQ(GenerationOf(slice), 4);
  slice["metadata"]["resourceVersion"] = "17";  // what a server adds
  EXPECT_TRUE(SaysTheSame(slice, node, devices));
  EXPECT_FALSE(SaysTheSame(slice, {"n1", "uid-2"}, devices));
  EXPECT_FALSE(SaysTheSame(slice, node, SliceDevices(Devices(1), {})));
  EXPECT_FALSE(SaysTheSame(slice, node, json::array()));
  json empty = MakeSlice(node, json::array(), 5);
  EXPECT_TRUE(SaysTheSame(empty, node, json::array()));
  empty["spec"].erase("devices");
  EXPECT_TRUE(SaysTheSame(empty, node, json::array()));
  EXPECT_FALSE(SaysTheSame(empty, node, devices));
  EXPECT_FALSE(SaysTheSame(json::object(), node, devices));
}

}  // namespace
}  // namespace prorata::kubernetes
