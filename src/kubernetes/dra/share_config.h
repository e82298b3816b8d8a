#pragma once

// What a DeviceClass or a claim says of a share beside its size: the opaque parameters for our
// driver.
//
//   {"apiVersion": "gpu.prorata.dev/v1alpha1", "kind": "ShareConfig",
//    "computeLimit"?: 1-100 (hundredths of a GPU), "weight"?: N, "priority"?: N,
//    "yieldWithin"?: "2ms", "onFull"?: "fail" | "wait" | "wait=30s",
//    "gang"?: "auto" | "always" | "never"}
//
// Pure; thread-safe.

#include <nlohmann/json_fwd.hpp>

#include "api/control.h"
#include "base/result.h"

namespace prorata::kubernetes {

// Sets in `share` what the parameters say and leaves the rest. "bad_config", with the field: one
// that is not known, or a value that is none. A misspelt limit must not be a share without one.
// Whether the values agree with each other is the agent's to say.
Status ApplyShareConfig(const nlohmann::json& parameters, api::ShareSpec* share);

}  // namespace prorata::kubernetes
