#pragma once

// What a pod asks of GPUs in the names of prorata or of an older system, before any of it is
// translated. Pure; thread-safe.
//
//   KubeShare   labels sharedgpu/gpu_request, gpu_limit, gpu_mem, gpu_model, priority, group_*;
//               annotations kubeshare/gpu_request, gpu_limit, gpu_mem: one part for the whole pod
//   GaiaGPU     resources tencent.com/vcuda-core, vcuda-memory of a container;
//               annotation tencent.com/vcuda-core-limit
//   HAMi        resources nvidia.com/gpumem, gpumem-percentage, gpucores, with nvidia.com/gpu, of a
//               container; annotations nvidia.com/use-gputype and the like. nvidia.com/gpu alone is
//               left to NVIDIA's device plugin
//               (KubeShare, HAMi, annotations: with which GPUs are to be chosen, gpu_choice.h)
//   resources   prorata.dev/gpu-memory (256 MiB each) and prorata.dev/gpu-compute (hundredths) of a
//               container
//   annotations prorata.dev/memory and compute (wish.h): one part for the whole pod

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kubernetes/pods/gpu_choice.h"
#include "kubernetes/pods/wish.h"

namespace prorata::kubernetes {

// The names of systems that may be translated, as options have them.
inline constexpr std::string_view kSystems[] = {"kubeshare", "gaiagpu", "hami", "resources",
                                                "annotations"};
using Systems = std::set<std::string, std::less<>>;

// A part of a GPU, or of several.
struct GpuAsk {
  std::string entry;                    // of spec.resourceClaims, to be
  std::vector<std::string> containers;  // that have it; init containers among them
  uint32_t gpus = 1;
  ShareWish share = {};  // without a size of memory: all of a GPU's
  // Instead of a size of memory: so much of whichever GPU it is.
  std::optional<Fraction> memory_part = {};
  GpuChoice choice = {};
};

struct AskedGroup {
  std::string name;
  std::string size;  // so many pods at least
};

struct PodAsks {
  std::string system;  // as people call it; empty: the pod asks for nothing
  std::vector<GpuAsk> asks;
  std::vector<std::string> resources;  // names that go from the containers
  std::optional<AskedGroup> group;     // of pods that are to be placed together
  std::vector<std::string> warnings;   // what is not done as the system did it
};

// "bad_ask", one sentence for the pod's author: a value that is none, 0, negative or above a GPU, a
// contradiction, names of two systems.
Result<PodAsks> ReadAsks(const nlohmann::json& pod, const Systems& systems);

// Whether a container asks for any resource of a system's or prorata's, translated or not.
bool NamesGpuResources(const nlohmann::json& container);

// The pod's containers of all kinds.
std::vector<const nlohmann::json*> ContainersOf(const nlohmann::json& pod);

}  // namespace prorata::kubernetes
