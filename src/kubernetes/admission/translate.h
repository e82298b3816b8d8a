#pragma once

// From what a pod asks for to what its cluster has: claims, or the device plugin's resources. Pure;
// thread-safe.
//
// `gpu_bytes` of all: the sizes of the memory of the cluster's GPUs, each once.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/result.h"
#include "kubernetes/admission/pod_asks.h"
#include "kubernetes/pods/pod_request.h"

namespace prorata::kubernetes {

struct Translation {
  nlohmann::json pod;
  // Named by their content, so that pods which ask for the same share one, and nobody has to remove
  // one that another pod is about to use.
  std::vector<nlohmann::json> templates;
};

// "bad_ask": a part of a GPU's memory where no GPU is known; more memory than any GPU has (where
// one is known); a name that the pod has in use.
Result<Translation> TranslateToClaims(const nlohmann::json& pod, const PodAsks& asks,
                                      std::span<const uint64_t> gpu_bytes);

// The pod as it is to be: the size of each part as limits of its container, all else as annotations
// (gpu_choice.h, pod_group.h, wish.h). "bad_ask": what these cannot say, which is one part for
// several containers, parts of several GPUs, and a part of a GPU's memory or all of it where the
// cluster's GPUs are of several sizes or none is known; and as above.
Result<nlohmann::json> TranslateToResources(const nlohmann::json& pod, const PodAsks& asks,
                                            const ResourceNames& names,
                                            std::span<const uint64_t> gpu_bytes);

// What both do.
Status CheckMemorySize(const GpuAsk& ask, std::span<const uint64_t> gpu_bytes);
// Rounded down to whole steps, so that parts that add up to a GPU fit on one; one step at least.
uint64_t PartOfMemory(Fraction part, uint64_t gpu_bytes);
// Removes the other system's resources and scheduler, and writes the pod's group and whose names it
// had.
void FinishTranslation(const PodAsks& asks, nlohmann::json* pod);

}  // namespace prorata::kubernetes
