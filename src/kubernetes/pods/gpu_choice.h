#pragma once

// Which GPUs a pod may have, by its annotations. Pure; thread-safe.
//
//   prorata.dev/gpu-model: A100,H100   a part of the model's name, in letters of any case; a dash
//   is
//                                      as good as a space
//   prorata.dev/gpu-uuid: GPU-...      all of the UUID
//
// Of several any will do. What stands behind "!" is never taken.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace prorata::kubernetes {

inline constexpr char kGpuModelAnnotation[] = "prorata.dev/gpu-model";
inline constexpr char kGpuUuidAnnotation[] = "prorata.dev/gpu-uuid";

struct GpuChoice {
  struct Names {
    std::vector<std::string> any = {};  // none: all
    std::vector<std::string> not_of = {};

    bool operator==(const Names&) const = default;
  };
  Names models = {};
  Names uuids = {};

  bool Empty() const { return *this == GpuChoice{}; }
  // A GPU is allowed if its model and its UUID are. Apart, because a cluster has few models and
  // many GPUs.
  bool AllowsModel(std::string_view model) const;
  bool AllowsUuid(std::string_view uuid) const;
  bool operator==(const GpuChoice&) const = default;
};

// A model's name, or a part of one, as they are compared.
std::string ComparableModel(std::string_view name);

// "bad_annotation": a name that is empty.
Result<GpuChoice> GpuChoiceOf(const nlohmann::json& pod);
// Writes the pod's annotations; what is empty is left alone.
void WriteGpuChoice(const GpuChoice& choice, nlohmann::json* pod);

// "of model A100 or H100, not of model V100"; "" for any.
std::string DescribeGpuChoice(const GpuChoice& choice);

}  // namespace prorata::kubernetes
