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

// Those that ask NVIDIA's device plugin for a GPU, which have the share instead; all where none
// does.
Result<std::vector<std::string>> ContainersOfShortForm(const json& pod) {
  std::vector<std::string> all, asking;
  for (const json& container : pod.at("spec").value("containers", json::array())) {
    all.push_back(NameOf(container));
    for (const char* name : {kHamiGpus, kNvidiaShared}) {
      const auto gpus = ResourceOf(container, name);
      if (!gpus || *gpus == "0") continue;
      if (*gpus != "1") {
        return BadAsk("container '" + NameOf(container) + "' asks for " + *gpus + " of " + name +
                      ", and the pod's annotations for a part of one GPU; keep one of the two");
      }
      if (asking.empty() || asking.back() != all.back()) asking.push_back(all.back());
    }
  }
  return asking.empty() ? all : asking;
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
  auto containers = ContainersOfShortForm(pod);
  if (!containers) return std::unexpected(containers.error());
  ask.containers = std::move(*containers);
  asks->resources = {kHamiGpus, kNvidiaShared};
  ask.share = wish->second;
  asks->system = "prorata";
  asks->asks.push_back(std::move(ask));
  return {};
}

}  // namespace prorata::kubernetes
