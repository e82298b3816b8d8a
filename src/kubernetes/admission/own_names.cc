#include <nlohmann/json.hpp>

#include "kubernetes/admission/older_systems.h"
#include "kubernetes/admission/pod_fields.h"
#include "kubernetes/dra/resource_slice.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxMemorySteps = uint64_t{1} << 20;  // 256 TiB

Status ReadOwnContainer(const json& container, PodAsks* asks) {
  const auto compute = CountOf(container, kOwnCompute, 1, 100, "hundredths of one GPU");
  if (!compute) return std::unexpected(compute.error());
  const auto memory = CountOf(container, kOwnMemory, 1, kMaxMemorySteps, "units of 256 MiB");
  if (!memory) return std::unexpected(memory.error());
  if (!*compute && !*memory) return {};
  GpuAsk ask;
  ask.entry = EntryOfContainer(NameOf(container));
  ask.containers = {NameOf(container)};
  if (*memory) ask.share.memory_bytes = **memory * kMemoryStepBytes;
  if (*compute) ask.share.compute_percent = **compute;
  asks->system = "prorata";
  asks->resources = {kOwnCompute, kOwnMemory};
  asks->asks.push_back(std::move(ask));
  return {};
}

}  // namespace

Status ReadOwnResources(const json& pod, PodAsks* asks) {
  for (const json* container : ContainersOf(pod)) {
    if (auto ok = ReadOwnContainer(*container, asks); !ok) return ok;
  }
  return {};
}

Status ReadOwnAnnotations(const json& pod, PodAsks* asks) {
  const std::string entry = kEntryOfPod;
  auto wishes = ReadWishes(TextsOf(pod, "annotations"), {&entry, 1});
  if (!wishes) return BadAsk(wishes.error().message);
  const auto wish = wishes->find(entry);
  if (wish == wishes->end()) return {};
  // A copy of a pod that was translated once: what it had is its claim's.
  for (const json& claim : pod.at("spec").value("resourceClaims", json::array())) {
    if (NameOf(claim) == entry) return {};
  }
  if (!wish->second.memory_bytes && !wish->second.compute_percent) {
    return BadAsk("the pod's annotations are about a share, and it asks for none; add " +
                  std::string(kAnnotationPrefix) + "memory or " + std::string(kAnnotationPrefix) +
                  "compute, or a claim");
  }
  GpuAsk ask;
  ask.entry = entry;
  for (const json& container : pod.at("spec").value("containers", json::array())) {
    ask.containers.push_back(NameOf(container));
  }
  ask.share = wish->second;
  asks->system = "prorata";
  asks->asks.push_back(std::move(ask));
  return {};
}

}  // namespace prorata::kubernetes
