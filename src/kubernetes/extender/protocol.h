#pragma once

// The messages between the cluster's scheduler and an extender: JSON whose keys are CamelCase.
// Pure; thread-safe.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace prorata::kubernetes {

// The highest of the scheduler's scale for extenders.
inline constexpr int kMaxPriority = 10;

struct ExtenderArgs {
  nlohmann::json pod;
  std::string uid;
  std::vector<std::string> nodes;
};
// Of filter and prioritize. "bad_args": not what a scheduler sends; a scheduler whose configuration
// lacks nodeCacheCapable sends whole nodes instead of names.
Result<ExtenderArgs> ParseExtenderArgs(std::string_view body);

struct BindArgs {
  std::string name;
  std::string name_space;
  std::string uid;
  std::string node;
};
Result<BindArgs> ParseBindArgs(std::string_view body);

// Reasons appear word for word in the pod's event, counted: the same words for the same reason.
struct FilterAnswer {
  std::span<const std::string> nodes;                        // of the request
  std::vector<size_t> fits;                                  // places in it
  std::vector<std::pair<size_t, const std::string*>> later;  // may fit when other pods leave
  std::vector<std::pair<size_t, const std::string*>> never;
};
std::string FormatFilterAnswer(const FilterAnswer& answer);
// The scheduler tries the pod again later, with this in its event.
std::string FormatFilterError(const std::string& error);

std::string FormatPriorities(std::span<const std::string> nodes, std::span<const int> scores);

std::string FormatBindAnswer(const std::string& error);  // empty: bound

}  // namespace prorata::kubernetes
