#pragma once

// Reading what a pod's author wrote. Pure; thread-safe.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "kubernetes/pods/wish.h"

namespace prorata::kubernetes {

std::unexpected<Error> BadAsk(const std::string& what);

// metadata.labels or metadata.annotations.
Annotations TextsOf(const nlohmann::json& pod, const char* field);

// The value of a container's resource, of its limits or else its requests; nothing: it has none.
std::optional<std::string> ResourceOf(const nlohmann::json& container, const std::string& name);

// A whole number of a container's resource from `min` to `max`; nothing: it does not ask for it.
// The message names the container, the resource, its value and what it may be.
Result<std::optional<uint64_t>> CountOf(const nlohmann::json& container, const std::string& name,
                                        uint64_t min, uint64_t max, const std::string& unit);

// "0.5", "1", ".25", as KubeShare has them: hundredths of a GPU, rounded up, at most 1600.
// `what` is named in messages.
Result<uint32_t> PercentOfDecimal(const std::string& what, const std::string& text);

// A text as a literal of CEL.
std::string CelText(const std::string& text);

std::string NameOf(const nlohmann::json& container);

}  // namespace prorata::kubernetes
