#pragma once

// What prorata writes on nodes and pods of clusters without DRA.
//
//   node  prorata.dev/gpus           [{"uuid": ..., "model": ..., "memory": 60, "compute": 100,
//                                      "size": 64}, ...]
//   pod   prorata.dev/assigned-gpus  {"CONTAINER": ["GPU-..."], ...}
//
// The device plugin writes the first: what pods may have together of each GPU, in units of
// kMemoryUnitBytes and hundredths of its time, and how large it is. The extender writes the second
// together with the pod's node, in one step, so a pod has either both or neither; the device plugin
// holds each container to it. Pure; thread-safe.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/control.h"
#include "base/result.h"

namespace prorata::kubernetes {

inline constexpr char kNodeGpusAnnotation[] = "prorata.dev/gpus";
inline constexpr char kAssignedGpusAnnotation[] = "prorata.dev/assigned-gpus";

struct NodeGpu {
  std::string uuid;
  std::string model;
  uint32_t memory_units = 0;
  uint32_t compute_percent = 0;
  uint32_t size_units = 0;  // all of its memory, whoever has it; 0: not known

  bool operator==(const NodeGpu&) const = default;
};

std::string FormatNodeGpus(std::span<const NodeGpu> gpus);
// "bad_annotation".
Result<std::vector<NodeGpu>> ParseNodeGpus(std::string_view text);

// The UUIDs of each container's GPUs.
using AssignedGpus = std::map<std::string, std::vector<std::string>>;

std::string FormatAssignedGpus(const AssignedGpus& assigned);
// "bad_annotation".
Result<AssignedGpus> ParseAssignedGpus(std::string_view text);

// The value of an annotation of an object; nothing: it has none.
std::optional<std::string> AnnotationOf(const nlohmann::json& object, const char* name);

// What pods may have of this node's GPUs: all but what is no share's (the driver's memory, programs
// outside) and what shares have that are no pod's (`is_pod`: by a share's name). A GPU that a share
// has for itself has nothing for pods.
std::vector<NodeGpu> GpusForPods(std::span<const api::DeviceStatus> devices,
                                 std::span<const api::ShareStatus> shares,
                                 bool (*is_pod)(std::string_view share_name));

}  // namespace prorata::kubernetes
