#include "kubernetes/dra/resource_slice.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "kubernetes/api/quantity.h"
#include "kubernetes/dra/names.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr uint32_t kPpmOfPercent = Fraction::kOne / 100;
constexpr size_t kMaxAttributeLength = 64;

// What shares have of one device.
struct Promised {
  uint64_t claims_bytes = 0;
  uint64_t others_bytes = 0;  // with what claims' shares grew by
  uint64_t claims_ppm = 0;
  uint64_t others_ppm = 0;
};

template <typename Amount>
Amount Beyond(Amount has, Amount allocated) {
  return has > allocated ? has - allocated : 0;
}

// The scheduler counts what was allocated to a claim; what its share grew by since is taken from
// what is offered. A share that shrank gives nothing back to the scheduler.
void AddClaim(const api::ShareDevice& on, const AllocatedPart& allocated, Promised* promised) {
  const uint64_t bytes = Beyond(on.memory_request_bytes, allocated.memory_bytes);
  const uint32_t ppm = Beyond(on.compute_request.ppm, allocated.compute_ppm);
  promised->claims_bytes += on.memory_request_bytes - bytes;
  promised->others_bytes += bytes;
  promised->claims_ppm += on.compute_request.ppm - ppm;
  promised->others_ppm += ppm;
}

std::map<std::string, Promised> PromisedByDevice(std::span<const api::ShareStatus> shares,
                                                 const AllocatedClaims& allocated) {
  std::map<std::string, Promised> all;
  for (const api::ShareStatus& share : shares) {
    const auto uid = ClaimOfShare(share.name);
    const auto claim = allocated.find(uid.value_or(""));
    for (const api::ShareDevice& on : share.devices) {
      Promised& promised = all[on.uuid];
      if (claim != allocated.end()) {
        AddClaim(on, AllocatedOn(claim->second.share, on.uuid), &promised);
        continue;
      }
      // One that was removed keeps its memory until its programs are gone.
      (uid ? promised.claims_bytes : promised.others_bytes) += on.memory_request_bytes;
      (uid ? promised.claims_ppm : promised.others_ppm) += on.compute_request.ppm;
    }
  }
  return all;
}

struct Capacity {
  uint64_t memory_bytes = 0;
  uint64_t compute_percent = 0;
};

Capacity CapacityOf(const api::DeviceStatus& device, const Promised& promised) {
  Capacity capacity;
  const uint64_t taken = device.foreign_bytes + promised.others_bytes;
  if (taken < device.total_bytes) {
    capacity.memory_bytes = (device.total_bytes - taken) / kMemoryStepBytes * kMemoryStepBytes;
  }
  if (promised.others_ppm < Fraction::kOne) {
    capacity.compute_percent = (Fraction::kOne - promised.others_ppm) / kPpmOfPercent;
  }
  return capacity;
}

double Fullness(const api::DeviceStatus& device, const Promised& promised) {
  const double memory = device.total_bytes == 0
                            ? 0
                            : static_cast<double>(promised.claims_bytes + promised.others_bytes) /
                                  static_cast<double>(device.total_bytes);
  const double compute =
      static_cast<double>(promised.claims_ppm + promised.others_ppm) / Fraction::kOne;
  return memory + compute;
}

json Policy(const std::string& step, const std::string& min, const std::string& otherwise) {
  return {{"default", otherwise}, {"validRange", {{"min", min}, {"step", step}}}};
}

json DeviceOf(const api::DeviceStatus& device, const Capacity& capacity) {
  const std::string memory = FormatBinaryQuantity(capacity.memory_bytes);
  const std::string step = FormatBinaryQuantity(kMemoryStepBytes);
  const std::string compute = std::to_string(capacity.compute_percent);
  return {{"name", DeviceName(device.uuid)},
          {"allowMultipleAllocations", true},
          {"attributes",
           {{"uuid", {{"string", device.uuid.substr(0, kMaxAttributeLength)}}},
            {"model", {{"string", device.name.substr(0, kMaxAttributeLength)}}},
            {"index", {{"int", device.index}}},
            {kMemorySizeAttribute, {{"int", device.total_bytes >> 20}}}}},
          // A claim that does not say how much memory it wants gets all of a GPU's; one that does
          // not say how much of its time is guaranteed none, and has what others leave.
          {"capacity",
           {{kMemoryCapacity, {{"value", memory}, {"requestPolicy", Policy(step, step, memory)}}},
            {kComputeCapacity, {{"value", compute}, {"requestPolicy", Policy("1", "0", "0")}}}}}};
}

}  // namespace

std::string SliceName(const std::string& node) { return node + "-" + kDriverName; }

json SliceDevices(std::span<const api::DeviceStatus> devices,
                  std::span<const api::ShareStatus> shares, const AllocatedClaims& allocated) {
  const auto promised = PromisedByDevice(shares, allocated);
  const auto of = [&](const api::DeviceStatus& device) {
    const auto found = promised.find(device.uuid);
    return found == promised.end() ? Promised{} : found->second;
  };
  std::vector<const api::DeviceStatus*> order;
  for (const api::DeviceStatus& device : devices) order.push_back(&device);
  std::stable_sort(order.begin(), order.end(), [&](const auto* one, const auto* other) {
    return Fullness(*one, of(*one)) > Fullness(*other, of(*other));
  });
  json list = json::array();
  for (const api::DeviceStatus* device : order) {
    const Capacity capacity = CapacityOf(*device, of(*device));
    if (!device->exclusive.empty() || capacity.memory_bytes < 2 * kMemoryStepBytes ||
        capacity.compute_percent == 0) {
      continue;
    }
    list.push_back(DeviceOf(*device, capacity));
  }
  return list;
}

json MakeSlice(const NodeReference& node, json devices, int64_t generation) {
  return {{"apiVersion", "resource.k8s.io/v1"},
          {"kind", "ResourceSlice"},
          {"metadata",
           {{"name", SliceName(node.name)},
            {"ownerReferences",
             {{{"apiVersion", "v1"},
               {"kind", "Node"},
               {"name", node.name},
               {"uid", node.uid},
               {"controller", true}}}}}},
          {"spec",
           {{"driver", kDriverName},
            {"nodeName", node.name},
            {"pool", {{"name", node.name}, {"generation", generation}, {"resourceSliceCount", 1}}},
            {"devices", std::move(devices)}}}};
}

int64_t GenerationOf(const json& slice) {
  const json::json_pointer where("/spec/pool/generation");
  if (!slice.contains(where) || !slice.at(where).is_number_integer()) return 0;
  return slice.at(where).get<int64_t>();
}

bool SaysTheSame(const json& slice, const NodeReference& node, const json& devices) {
  const json wanted = MakeSlice(node, devices, GenerationOf(slice));
  if (!slice.is_object() || slice.value("spec", json()) != wanted["spec"]) {
    // The API server leaves an empty list out.
    return devices.empty() && slice.is_object() && slice.contains("spec") &&
           !slice["spec"].contains("devices") &&
           slice["spec"].value("pool", json()) == wanted["spec"]["pool"];
  }
  const json owners = slice["metadata"].value("ownerReferences", json::array());
  return owners.size() == 1 && owners[0].value("uid", "") == node.uid;
}

}  // namespace prorata::kubernetes
