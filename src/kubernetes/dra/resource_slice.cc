#include "kubernetes/dra/resource_slice.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "kubernetes/api/quantity.h"
#include "kubernetes/dra/names.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr uint32_t kPpmOfPercent = Fraction::kOne / 100;
constexpr size_t kMaxAttributeLength = 64;
// A driver is slow for longer than a look takes now and then.
constexpr int64_t kSickMs = 5'000;

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

// As semantic versioning has it, which the API server wants: three numbers without zeros before
// them. Empty: it is none.
std::string SemanticVersion(const std::string& version) {
  std::string semantic;
  int numbers = 0;
  for (size_t from = 0; from <= version.size() && numbers < 3;) {
    const size_t dot = std::min(version.find('.', from), version.size());
    const std::string part = version.substr(from, dot - from);
    if (part.empty() || part.find_first_not_of("0123456789") != std::string::npos) return "";
    const size_t first = std::min(part.find_first_not_of('0'), part.size() - 1);
    semantic += (numbers++ > 0 ? "." : "") + part.substr(first);
    from = dot + 1;
  }
  for (; numbers < 3; ++numbers) semantic += ".0";
  return semantic.size() <= kMaxAttributeLength ? semantic : "";
}

// The least index of those that NVLinks connect it with, by others of them too; nothing: none do.
// `devices`: by index.
std::optional<uint32_t> NvlinkIsland(std::span<const api::DeviceStatus> devices, size_t of) {
  std::set<size_t> island = {of};
  std::vector<size_t> next = {of};
  while (!next.empty()) {
    const auto& links = devices[next.back()].links;
    next.pop_back();
    for (size_t peer = 0; peer < std::min(links.size(), devices.size()); ++peer) {
      if (links[peer].kind == LinkClass::kNvlink && island.insert(peer).second) {
        next.push_back(peer);
      }
    }
  }
  if (island.size() == 1) return std::nullopt;
  return devices[*island.begin()].index;
}

json AttributesOf(const api::DeviceStatus& device, std::optional<uint32_t> island) {
  json attributes = {{"uuid", {{"string", device.uuid.substr(0, kMaxAttributeLength)}}},
                     {"model", {{"string", device.name.substr(0, kMaxAttributeLength)}}},
                     {"index", {{"int", device.index}}},
                     {"mode", {{"string", "shared"}}},
                     {kMemorySizeAttribute, {{"int", device.total_bytes >> 20}}}};
  const auto add_version = [&](const char* name, const std::string& version) {
    const std::string semantic = SemanticVersion(version);
    if (!semantic.empty()) attributes[name] = {{"version", semantic}};
  };
  add_version("cudaComputeCapability", device.compute_capability);
  add_version("driverVersion", device.driver_version);
  if (device.numa_node) attributes["numaNode"] = {{"int", *device.numa_node}};
  if (island) attributes["nvlinkIsland"] = {{"int", *island}};
  // Kubernetes' own name, by which devices of other drivers are matched with it.
  if (!device.pcie_root.empty()) {
    attributes["resource.kubernetes.io/pcieRoot"] = {{"string", device.pcie_root}};
  }
  return attributes;
}

json DeviceOf(const api::DeviceStatus& device, const Capacity& capacity,
              std::optional<uint32_t> island) {
  const std::string memory = FormatBinaryQuantity(capacity.memory_bytes);
  const std::string step = FormatBinaryQuantity(kMemoryStepBytes);
  const std::string compute = std::to_string(capacity.compute_percent);
  json made = {
      {"name", DeviceName(device.uuid)},
      {"allowMultipleAllocations", true},
      {"attributes", AttributesOf(device, island)},
      // A claim that does not say how much memory it wants gets all of a GPU's; one that does
      // not say how much of its time is guaranteed none, and has what others leave.
      {"capacity",
       {{kMemoryCapacity, {{"value", memory}, {"requestPolicy", Policy(step, step, memory)}}},
        {kComputeCapacity, {{"value", compute}, {"requestPolicy", Policy("1", "0", "0")}}}}}};
  if (IsSick(device)) {
    made["taints"] = json::array({{{"key", kUnresponsiveTaint}, {"effect", "NoSchedule"}}});
  }
  return made;
}

}  // namespace

bool IsSick(const api::DeviceStatus& device) { return device.driver_unresponsive_ms >= kSickMs; }

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
    const auto number = static_cast<size_t>(device - devices.data());
    list.push_back(DeviceOf(*device, capacity, NvlinkIsland(devices, number)));
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

bool DropTaints(json* devices) {
  bool any = false;
  for (json& device : *devices) any |= device.erase("taints") > 0;
  return any;
}

bool SaysTheSame(const json& slice, const NodeReference& node, const json& devices) {
  const json wanted = MakeSlice(node, devices, GenerationOf(slice));
  json said = slice.is_object() ? slice.value("spec", json()) : json();
  for (json& device : said.is_object() ? said["devices"] : said) {
    if (!device.is_object() || !device.contains("taints")) continue;
    // The API server adds the time.
    for (json& taint : device["taints"]) taint.erase("timeAdded");
  }
  if (said != wanted["spec"]) {
    // The API server leaves an empty list out.
    return devices.empty() && slice.is_object() && slice.contains("spec") &&
           !slice["spec"].contains("devices") &&
           slice["spec"].value("pool", json()) == wanted["spec"]["pool"];
  }
  const json owners = slice["metadata"].value("ownerReferences", json::array());
  return owners.size() == 1 && owners[0].value("uid", "") == node.uid;
}

}  // namespace prorata::kubernetes
