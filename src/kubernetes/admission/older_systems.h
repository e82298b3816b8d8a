#pragma once

// One reader for each system whose names are translated (pod_asks.h says which names). Each leaves
// `asks` alone where the pod has none of its names. Errors: ReadAsks'. Pure; thread-safe.

#include <nlohmann/json_fwd.hpp>

#include "kubernetes/admission/pod_asks.h"

namespace prorata::kubernetes {

Status ReadKubeShare(const nlohmann::json& pod, PodAsks* asks);
Status ReadGaiaGpu(const nlohmann::json& pod, PodAsks* asks);
Status ReadHami(const nlohmann::json& pod, PodAsks* asks);
Status ReadOwnResources(const nlohmann::json& pod, PodAsks* asks);
Status ReadOwnAnnotations(const nlohmann::json& pod, PodAsks* asks);

// An entry of spec.resourceClaims for a container's own part.
std::string EntryOfContainer(const std::string& container);
inline constexpr char kEntryOfPod[] = "prorata";

// The names of a system's resources, with prorata's own.
inline constexpr char kVcudaCore[] = "tencent.com/vcuda-core";
inline constexpr char kVcudaMemory[] = "tencent.com/vcuda-memory";
inline constexpr char kHamiGpus[] = "nvidia.com/gpu";  // NVIDIA's device plugin's as well
// What that plugin calls it, if told to, where several pods share a GPU by time-slicing or MPS.
inline constexpr char kNvidiaShared[] = "nvidia.com/gpu.shared";
inline constexpr char kHamiMemory[] = "nvidia.com/gpumem";
inline constexpr char kHamiMemoryPart[] = "nvidia.com/gpumem-percentage";
inline constexpr char kHamiCores[] = "nvidia.com/gpucores";
inline constexpr char kHamiPriority[] = "nvidia.com/priority";
inline constexpr char kOwnMemory[] = "prorata.dev/gpu-memory";
inline constexpr char kOwnCompute[] = "prorata.dev/gpu-compute";

}  // namespace prorata::kubernetes
