#include "kubernetes/admission/cluster.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/bytes.h"
#include "kubernetes/dra/names.h"
#include "kubernetes/pods/annotations.h"
#include "kubernetes/pods/pod_request.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

// A cluster of thousands of nodes has as many slices, and its GPUs' sizes change seldom.
constexpr std::chrono::seconds kSizesAge{30};
constexpr char kResourceApi[] = "/apis/resource.k8s.io/v1";
constexpr char kGroupApi[] = "/apis/scheduling.k8s.io/v1alpha2";

std::string InNamespace(const std::string& name_space, const char* kind) {
  return std::string(kResourceApi) + "/namespaces/" + name_space + "/" + kind;
}

bool IsOfClass(const json& request) {
  for (const json& each : request.value("firstAvailable", json::array())) {
    if (each.value("deviceClassName", "") == kDriverName) return true;
  }
  return request.value(json::json_pointer("/exactly/deviceClassName"), std::string()) ==
         kDriverName;
}

std::vector<uint64_t> SizesInSlices(const json& slices) {
  std::set<uint64_t> sizes;
  const json::json_pointer where = json::json_pointer("/attributes") / kMemorySizeAttribute / "int";
  for (const json& slice : slices.value("items", json::array())) {
    for (const json& device : slice.value(json::json_pointer("/spec/devices"), json::array())) {
      const uint64_t mib = device.value(where, uint64_t{0});
      if (mib > 0) sizes.insert(mib * kMiB);
    }
  }
  return {sizes.begin(), sizes.end()};
}

std::vector<uint64_t> SizesOnNodes(const json& nodes) {
  std::set<uint64_t> sizes;
  for (const json& node : nodes.value("items", json::array())) {
    const auto text = AnnotationOf(node, kNodeGpusAnnotation);
    const auto gpus = text ? ParseNodeGpus(*text) : std::vector<NodeGpu>();
    if (!gpus) continue;
    for (const NodeGpu& gpu : *gpus) {
      if (gpu.size_units > 0) sizes.insert(gpu.size_units * kMemoryUnitBytes);
    }
  }
  return {sizes.begin(), sizes.end()};
}

}  // namespace

Result<bool> KubeCluster::HasDriver() {
  if (has_driver_) return true;
  const auto found = client_.Get(std::string(kResourceApi) + "/deviceclasses/" + kDriverName);
  if (!found && found.error().code == "not_found") return false;
  if (!found) return std::unexpected(found.error());
  has_driver_ = true;
  return true;
}

Result<std::vector<uint64_t>> KubeCluster::GpuSizes(GpusOf where) {
  const std::lock_guard lock(mutex_);
  Sizes& sizes = sizes_[where == GpusOf::kNodes];
  const auto now = std::chrono::steady_clock::now();
  if (sizes.read && now - *sizes.read < kSizesAge) return sizes.bytes;
  auto read = ReadSizes(where);
  if (!read) return read;
  sizes.bytes = std::move(*read);
  // None yet: the first node may come at any moment.
  if (!sizes.bytes.empty()) sizes.read = now;
  return sizes.bytes;
}

Result<std::vector<uint64_t>> KubeCluster::ReadSizes(GpusOf where) {
  const bool in_slices = where == GpusOf::kSlices;
  // Version 0: from the API server's memory.
  const auto listed = client_.Get(
      in_slices ? std::string(kResourceApi) +
                      "/resourceslices?resourceVersion=0&fieldSelector=spec.driver%3D" + kDriverName
                : "/api/v1/nodes?resourceVersion=0");
  if (!listed) return std::unexpected(listed.error());
  try {
    return in_slices ? SizesInSlices(*listed) : SizesOnNodes(*listed);
  } catch (const json::exception& error) {
    return Fail("api_error", std::string("the API server's list of ") +
                                 (in_slices ? "slices: " : "nodes: ") + error.what());
  }
}

Result<bool> KubeCluster::IsOfProrata(const std::string& name_space, const json& entry) {
  const bool claim = entry.contains("resourceClaimName");
  const std::string name =
      entry.value(claim ? "resourceClaimName" : "resourceClaimTemplateName", std::string());
  const auto found = client_.Get(
      InNamespace(name_space, claim ? "resourceclaims" : "resourceclaimtemplates") + "/" + name);
  if (!found && found.error().code == "not_found") return false;
  if (!found) return std::unexpected(found.error());
  const json::json_pointer where(claim ? "/spec/devices/requests" : "/spec/spec/devices/requests");
  for (const json& request : found->value(where, json::array())) {
    if (IsOfClass(request)) return true;
  }
  return false;
}

Status KubeCluster::EnsureTemplate(const std::string& name_space, const json& claim_template) {
  return Ensure(InNamespace(name_space, "resourceclaimtemplates"), claim_template);
}

Result<bool> KubeCluster::HasGroups() {
  const auto found = client_.Get(kGroupApi);
  if (!found && found.error().code == "not_found") return false;
  if (!found) return std::unexpected(found.error());
  for (const json& resource : found->value("resources", json::array())) {
    if (resource.value("name", "") == "podgroups") return true;
  }
  return false;
}

Status KubeCluster::EnsureGroup(const std::string& name_space, const json& group) {
  return Ensure(std::string(kGroupApi) + "/namespaces/" + name_space + "/podgroups", group);
}

Status KubeCluster::Ensure(const std::string& path, const json& object) {
  const auto made = client_.Post(path, object);
  if (made || made.error().code == "conflict") return {};
  return std::unexpected(made.error());
}

}  // namespace prorata::kubernetes
