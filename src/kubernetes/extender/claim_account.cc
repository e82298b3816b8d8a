#include "kubernetes/extender/claim_account.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kubernetes/api/quantity.h"
#include "kubernetes/dra/names.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

const json& ListAt(const json& object, const char* pointer) {
  static const json kNone = json::array();
  const json::json_pointer where(pointer);
  if (!object.contains(where) || !object.at(where).is_array()) return kNone;
  return object.at(where);
}

std::string StringAt(const json& object, const char* pointer) {
  return object.value(json::json_pointer(pointer), std::string());
}

// 0 where it is missing or none.
uint64_t QuantityAt(const json& object, const json::json_pointer& where) {
  if (!object.contains(where) || !object.at(where).is_string()) return 0;
  return ParseQuantity(object.at(where).get<std::string>()).value_or(0);
}

uint32_t UnitsOf(uint64_t bytes) { return static_cast<uint32_t>(bytes / kMemoryUnitBytes); }
uint32_t PercentOf(uint64_t compute) {
  return static_cast<uint32_t>(std::min<uint64_t>(compute, kWholeGpuPercent));
}

NodeGpu GpuOf(const json& device) {
  using Pointer = json::json_pointer;
  // Claims name a device by the name that it has in the slice.
  return {
      .uuid = device.value("name", std::string()),
      .model = StringAt(device, "/attributes/model/string"),
      .memory_units = UnitsOf(QuantityAt(device, Pointer("/capacity") / kMemoryCapacity / "value")),
      .compute_percent =
          PercentOf(QuantityAt(device, Pointer("/capacity") / kComputeCapacity / "value"))};
}

// Of a request: exactly what it says, or the first of its alternatives.
const json* ExactOf(const json& request) {
  const auto exactly = request.find("exactly");
  if (exactly != request.end()) return &*exactly;
  const json& alternatives = ListAt(request, "/firstAvailable");
  return alternatives.empty() ? nullptr : &alternatives.front();
}

std::vector<ContainerRequest> RequestsIn(const json& claim) {
  const json::json_pointer requests("/capacity/requests");
  std::vector<ContainerRequest> wants;
  for (const json& request : ListAt(claim, "/spec/devices/requests")) {
    const json* exact = ExactOf(request);
    if (exact == nullptr || exact->value("deviceClassName", "") != kDriverName) continue;
    ContainerRequest one;
    one.name = request.value("name", std::string());
    one.gpu_count =
        static_cast<uint32_t>(std::clamp<int64_t>(exact->value("count", int64_t{1}), 1, 16));
    one.memory_units = UnitsOf(QuantityAt(*exact, requests / kMemoryCapacity));
    one.compute_percent = PercentOf(QuantityAt(*exact, requests / kComputeCapacity));
    wants.push_back(std::move(one));
  }
  return wants;
}

// What a claim was allocated: a container of its own for each device.
struct Allocated {
  std::string node;
  std::vector<ContainerRequest> requests = {};
  AssignedGpus assigned = {};
};

Allocated AllocatedIn(const json& claim) {
  const json::json_pointer consumed("/consumedCapacity");
  Allocated allocated;
  for (const json& result : ListAt(claim, "/status/allocation/devices/results")) {
    if (result.value("driver", "") != kDriverName) continue;
    // One pool a node, by its name.
    allocated.node = result.value("pool", std::string());
    ContainerRequest one;
    one.name = std::to_string(allocated.requests.size());
    one.memory_units = UnitsOf(QuantityAt(result, consumed / kMemoryCapacity));
    one.compute_percent = PercentOf(QuantityAt(result, consumed / kComputeCapacity));
    allocated.assigned[one.name] = {result.value("device", std::string())};
    allocated.requests.push_back(std::move(one));
  }
  return allocated;
}

}  // namespace

void ClaimAccount::SetSlice(const json& slice) {
  if (StringAt(slice, "/spec/driver") != kDriverName) return;
  const std::string node = StringAt(slice, "/spec/nodeName");
  std::vector<NodeGpu> gpus;
  for (const json& device : ListAt(slice, "/spec/devices")) gpus.push_back(GpuOf(device));
  // The driver lists the fullest first: the order changes with each pod, and means nothing here.
  std::ranges::sort(gpus, {}, &NodeGpu::uuid);
  account_.SetNode(node, std::move(gpus));
  nodes_[StringAt(slice, "/metadata/uid")] = node;
}

void ClaimAccount::RemoveSlice(const json& slice) {
  const auto found = nodes_.find(StringAt(slice, "/metadata/uid"));
  if (found == nodes_.end()) return;
  const std::string node = found->second;
  nodes_.erase(found);
  // A slice that was dropped and written anew has another UID.
  const bool another =
      std::ranges::any_of(nodes_, [&](const auto& known) { return known.second == node; });
  if (!another) account_.RemoveNode(node);
}

void ClaimAccount::KeepOnlySlices(const std::unordered_set<std::string>& uids) {
  std::erase_if(nodes_, [&](const auto& known) { return !uids.contains(known.first); });
  std::unordered_set<std::string> left;
  for (const auto& [uid, node] : nodes_) left.insert(node);
  account_.KeepOnlyNodes(left);
}

void ClaimAccount::SetClaim(const json& claim) {
  const std::string uid = StringAt(claim, "/metadata/uid");
  const Allocated allocated = AllocatedIn(claim);
  Claim known;
  if (allocated.requests.empty()) {
    known.wants = RequestsIn(claim);
    if (known.wants.empty()) return RemoveClaim(uid);
    account_.Remove(uid);
  } else {
    account_.SetBound(uid, allocated.node, allocated.requests, allocated.assigned);
  }
  known.name = StringAt(claim, "/metadata/namespace") + "/" + StringAt(claim, "/metadata/name");
  by_name_[known.name] = uid;
  claims_.insert_or_assign(uid, std::move(known));
}

void ClaimAccount::RemoveClaim(const std::string& uid) {
  account_.Remove(uid);
  const auto found = claims_.find(uid);
  if (found == claims_.end()) return;
  // Another may have its name by now.
  const auto named = by_name_.find(found->second.name);
  if (named != by_name_.end() && named->second == uid) by_name_.erase(named);
  claims_.erase(found);
}

void ClaimAccount::KeepOnlyClaims(const std::unordered_set<std::string>& uids) {
  std::vector<std::string> gone;
  for (const auto& [uid, claim] : claims_) {
    if (!uids.contains(uid)) gone.push_back(uid);
  }
  for (const std::string& uid : gone) RemoveClaim(uid);
}

std::vector<ContainerRequest> ClaimAccount::WantsOf(const json& pod) const {
  std::unordered_map<std::string, std::string> made;  // by the entry, of a template
  for (const json& status : ListAt(pod, "/status/resourceClaimStatuses")) {
    made[status.value("name", "")] = status.value("resourceClaimName", "");
  }
  const std::string name_space = StringAt(pod, "/metadata/namespace");
  std::vector<ContainerRequest> wants;
  for (const json& entry : ListAt(pod, "/spec/resourceClaims")) {
    std::string name = entry.value("resourceClaimName", "");
    if (name.empty()) name = made[entry.value("name", "")];
    const auto uid = by_name_.find(name_space + "/" + name);
    const auto claim = uid == by_name_.end() ? claims_.end() : claims_.find(uid->second);
    if (claim == claims_.end()) continue;
    wants.insert(wants.end(), claim->second.wants.begin(), claim->second.wants.end());
  }
  return wants;
}

std::vector<int> ClaimAccount::Scores(const json& pod, std::span<const std::string> nodes,
                                      int highest) {
  std::vector<int> scores(nodes.size(), 0);
  const auto wants = WantsOf(pod);
  if (wants.empty()) return scores;
  const auto found = account_.Look(wants, nodes);
  const std::vector<int> priorities = PrioritiesOf(found, highest);
  for (size_t i = 0; i < found.fits.size(); ++i) scores[found.fits[i].node] = priorities[i];
  return scores;
}

}  // namespace prorata::kubernetes
