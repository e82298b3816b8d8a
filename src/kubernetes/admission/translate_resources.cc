#include <algorithm>
#include <map>
#include <set>

#include "base/bytes.h"
#include "kubernetes/admission/older_systems.h"
#include "kubernetes/admission/pod_fields.h"
#include "kubernetes/admission/translate.h"
#include "kubernetes/dra/resource_slice.h"
#include "kubernetes/pods/pod_group.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr char kTranslatedFrom[] = "prorata.dev/translated-from";
// Schedulers of the older systems, which the cluster may not have.
constexpr std::string_view kTheirSchedulers[] = {"kubeshare-scheduler", "hami-scheduler"};
constexpr size_t kMaxAnnotationName = 63;  // behind the slash

Result<uint64_t> MemoryOf(const GpuAsk& ask, std::span<const uint64_t> gpu_bytes) {
  if (ask.share.memory_bytes) {
    if (auto ok = CheckMemorySize(ask, gpu_bytes); !ok) return std::unexpected(ok.error());
    return *ask.share.memory_bytes;
  }
  if (gpu_bytes.size() == 1) {
    return PartOfMemory(ask.memory_part.value_or(Fraction::One()), gpu_bytes.front());
  }
  return BadAsk("the pod asks for " +
                (ask.memory_part ? FormatPercent(*ask.memory_part) : std::string("all")) +
                " of a GPU's memory, and the cluster has " +
                (gpu_bytes.empty() ? "no GPU of prorata's by whose size that is known"
                                   : "GPUs of " + std::to_string(gpu_bytes.size()) + " sizes") +
                "; ask for an amount");
}

// What a container of the device plugin cannot have.
Status CheckExpressible(const GpuAsk& ask) {
  if (ask.containers.size() != 1) {
    return BadAsk("the pod asks for one part of a GPU for its " +
                  std::to_string(ask.containers.size()) +
                  " containers, and in a cluster without DRA each has a part of its own; ask for "
                  "it in the containers' limits");
  }
  if (ask.gpus > 1 && ask.share.compute_percent != kWholeGpuPercent) {
    return BadAsk("container '" + ask.containers.front() + "' asks for parts of " +
                  std::to_string(ask.gpus) +
                  " GPUs, and in a cluster without DRA it can have a part of one, or several whole "
                  "ones (100 hundredths of each)");
  }
  return {};
}

Status SetResource(const GpuAsk& ask, const PodAsks& asks, const std::string& name, uint64_t count,
                   json* container) {
  const auto own = ResourceOf(*container, name);
  const bool translated = std::ranges::find(asks.resources, name) != asks.resources.end();
  const std::string text = std::to_string(count);
  if (own && !translated && *own != text) {
    return BadAsk("container '" + ask.containers.front() + "' asks for " + *own + " of " + name +
                  ", and in the names of " + asks.system + " for " + text +
                  " of it; keep one of the two");
  }
  for (const char* kind : {"limits", "requests"}) (*container)["resources"][kind][name] = text;
  return {};
}

Status SetResources(const GpuAsk& ask, const PodAsks& asks, const ResourceNames& names,
                    uint64_t memory_bytes, json* pod) {
  for (const char* list : {"initContainers", "containers"}) {
    if (!(*pod)["spec"].contains(list)) continue;
    for (json& container : (*pod)["spec"][list]) {
      if (NameOf(container) != ask.containers.front()) continue;
      const uint64_t units = ask.gpus * (memory_bytes / kMemoryUnitBytes);
      if (auto ok = SetResource(ask, asks, names.memory, units, &container); !ok) return ok;
      const uint64_t compute = ask.gpus * uint64_t{ask.share.compute_percent.value_or(0)};
      if (compute == 0) continue;
      if (auto ok = SetResource(ask, asks, names.compute, compute, &container); !ok) return ok;
    }
  }
  return {};
}

// The options of the share as the annotations that ReadWishes reads. What the pod's author wrote
// stays.
Status SetOptions(const GpuAsk& ask, bool only_one, json* pod) {
  const ShareWish& share = ask.share;
  std::map<std::string, std::string> options;
  if (share.compute_limit_percent) {
    options["compute-limit"] = std::to_string(*share.compute_limit_percent);
  }
  if (share.weight) options["weight"] = std::to_string(*share.weight);
  if (share.priority) options["priority"] = std::to_string(*share.priority);
  if (share.yield_within_ns) {
    options["yield-within"] = std::to_string(*share.yield_within_ns / 1'000) + "us";
  }
  if (share.on_full) options["on-full"] = FormatOnFull(*share.on_full);
  if (share.gang) options["gang"] = FormatGang(*share.gang);
  json& annotations = (*pod)["metadata"]["annotations"];
  for (const auto& [field, value] : options) {
    const std::string name = only_one ? field : field + "." + ask.containers.front();
    if (name.size() > kMaxAnnotationName) {
      return BadAsk("container '" + ask.containers.front() +
                    "' has a name that is too long for the annotation " +
                    std::string(kAnnotationPrefix) + name + "; shorten it");
    }
    const std::string key = std::string(kAnnotationPrefix) + name;
    if (!annotations.contains(key)) annotations[key] = value;
  }
  return {};
}

}  // namespace

uint64_t PartOfMemory(Fraction part, uint64_t gpu_bytes) {
  const auto bytes = static_cast<uint64_t>(static_cast<double>(gpu_bytes) * part.value());
  return std::max(bytes / kMemoryStepBytes, uint64_t{1}) * kMemoryStepBytes;
}

Status CheckMemorySize(const GpuAsk& ask, std::span<const uint64_t> gpu_bytes) {
  if (!ask.share.memory_bytes || gpu_bytes.empty()) return {};
  const uint64_t largest = *std::max_element(gpu_bytes.begin(), gpu_bytes.end());
  if (*ask.share.memory_bytes <= largest) return {};
  return BadAsk("the pod asks for " + FormatBytes(*ask.share.memory_bytes) +
                " of a GPU's memory, and the cluster's largest GPU has " + FormatBytes(largest));
}

void FinishTranslation(const PodAsks& asks, json* pod) {
  // Only from containers that ask for a part: nvidia.com/gpu alone is another plugin's.
  std::set<std::string> translated;
  for (const GpuAsk& ask : asks.asks) {
    translated.insert(ask.containers.begin(), ask.containers.end());
  }
  for (const char* list : {"initContainers", "containers"}) {
    if (!(*pod)["spec"].contains(list)) continue;
    for (json& container : (*pod)["spec"][list]) {
      if (!translated.contains(NameOf(container)) || !container.contains("resources")) continue;
      for (const char* kind : {"limits", "requests"}) {
        if (!container["resources"].contains(kind)) continue;
        for (const std::string& name : asks.resources) container["resources"][kind].erase(name);
      }
    }
  }
  json& annotations = (*pod)["metadata"]["annotations"];
  annotations[kTranslatedFrom] = asks.system;
  if (asks.group) {
    annotations[kGroupAnnotation] = asks.group->name;
    annotations[kGroupSizeAnnotation] = asks.group->size;
  }
  const std::string scheduler = (*pod)["spec"].value("schedulerName", std::string());
  for (const std::string_view theirs : kTheirSchedulers) {
    if (scheduler == theirs) (*pod)["spec"]["schedulerName"] = "default-scheduler";
  }
}

Result<json> TranslateToResources(const json& pod, const PodAsks& asks, const ResourceNames& names,
                                  std::span<const uint64_t> gpu_bytes) {
  json made = pod;
  // First, for the names of the plugin may be those of the older system.
  FinishTranslation(asks, &made);
  for (const GpuAsk& ask : asks.asks) {
    if (auto ok = CheckExpressible(ask); !ok) return std::unexpected(ok.error());
    const auto memory_bytes = MemoryOf(ask, gpu_bytes);
    if (!memory_bytes) return std::unexpected(memory_bytes.error());
    Status ok = SetResources(ask, asks, names, *memory_bytes, &made);
    if (ok) ok = SetOptions(ask, asks.asks.size() == 1, &made);
    if (!ok) return std::unexpected(ok.error());
    WriteGpuChoice(ask.choice, &made);
  }
  return made;
}

}  // namespace prorata::kubernetes
