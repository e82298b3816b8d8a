#pragma once

// What the containers of a pod ask of GPUs by extended resources, for clusters without DRA. Pure;
// thread-safe.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/pods/gpu_choice.h"

namespace prorata::kubernetes {

// A GPU has 100 of `compute`, hundredths of its time, and of `memory` as many as it has units.
struct ResourceNames {
  std::string compute = "prorata.dev/gpu-compute";
  std::string memory = "prorata.dev/gpu-memory";
};
inline constexpr uint64_t kMemoryUnitMib = 256;
inline constexpr uint64_t kMemoryUnitBytes = kMemoryUnitMib << 20;
inline constexpr uint32_t kWholeGpuPercent = 100;

// When a container runs: an init container before those that come after it, a sidecar (an init
// container with restartPolicy Always) beside them.
enum class ContainerKind { kMain, kSidecar, kInit };

struct ContainerRequest {
  std::string name;
  ContainerKind kind = ContainerKind::kMain;
  uint32_t gpu_count = 1;
  // Of each of its GPUs; whole GPUs if there are several.
  uint32_t compute_percent = 0;
  uint64_t memory_units = 0;
  GpuChoice choice = {};  // the pod's

  bool operator==(const ContainerRequest&) const = default;
};

// Whether the init container can use what `later` gets.
bool Covers(const ContainerRequest& later, const ContainerRequest& init);

// "8 GiB and 30% of its time (of model A100)", of one GPU.
std::string DescribeRequest(const ContainerRequest& request);

// The containers that ask for GPUs, in the order of their start; none: the pod has nothing to do
// with GPUs. `pod`: as the API server gives it. "bad_request", with the container and what to
// write instead: compute without memory; compute above 100 that is not a multiple of 100; memory
// that several GPUs cannot share evenly; an init container that asks for more than each of those
// that run after it. "bad_annotation": GpuChoiceOf's.
Result<std::vector<ContainerRequest>> GpuRequestsOf(const nlohmann::json& pod,
                                                    const ResourceNames& names);

}  // namespace prorata::kubernetes
