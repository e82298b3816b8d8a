#pragma once

// What of a pod would reach GPUs around its share. Pure; thread-safe.

#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace prorata::kubernetes {

// "bypass", one sentence: a privileged container, a volume of the host that has its devices or the
// agent's socket, or an environment in which NVIDIA's runtime gives the container GPUs of its own.
Status CheckBypass(const nlohmann::json& pod);
// "bypass", one sentence: a container that has a share asks NVIDIA's device plugin for a GPU as
// well.
Status CheckOneGpu(const nlohmann::json& pod,
                   const std::function<bool(const nlohmann::json& container)>& has_share);

}  // namespace prorata::kubernetes
