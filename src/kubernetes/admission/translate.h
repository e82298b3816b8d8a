#pragma once

// From what a pod asks for to claims: the ResourceClaimTemplates that are needed, and the pod as it
// is to be. Pure; thread-safe.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/result.h"
#include "kubernetes/admission/pod_asks.h"

namespace prorata::kubernetes {

struct Translation {
  nlohmann::json pod;
  // Named by their content, so that pods which ask for the same share one, and nobody has to remove
  // one that another pod is about to use.
  std::vector<nlohmann::json> templates;
};

// `gpu_bytes`: the sizes of the memory of the cluster's GPUs, each once. "bad_ask": a part of a
// GPU's memory where no GPU is known; more memory than any GPU has (where one is known); a name
// that the pod has in use.
Result<Translation> Translate(const nlohmann::json& pod, const PodAsks& asks,
                              std::span<const uint64_t> gpu_bytes);

}  // namespace prorata::kubernetes
