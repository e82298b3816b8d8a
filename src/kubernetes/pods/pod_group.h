#pragma once

// Pods that are of use only together: all of them are placed, or none. Pure; thread-safe.

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"

namespace prorata::kubernetes {

// Annotations of each of its pods.
inline constexpr char kGroupAnnotation[] = "prorata.dev/group";
inline constexpr char kGroupSizeAnnotation[] = "prorata.dev/group-size";

struct PodGroup {
  std::string name;  // "NAMESPACE/NAME"
  size_t size = 0;   // so many pods at least
};

// Nothing: it is of no group. "bad_annotation": one of the two annotations without the other, or a
// size that is no whole number from 1 to 1000.
Result<std::optional<PodGroup>> GroupOf(const nlohmann::json& pod);

}  // namespace prorata::kubernetes
