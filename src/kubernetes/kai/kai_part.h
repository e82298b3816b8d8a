#pragma once

// What KAI (NVIDIA's scheduler, kai-scheduler/KAI-Scheduler) gave a container of part of a GPU:
// from what the container runtime sees of it. KAI itself sets, and enforces nothing by it:
//
//   pod        annotation gpu-fraction ("0.5") or gpu-memory ("4096", MiB), of each of its GPUs;
//              gpu-fraction-num-devices ("2"; 1 without it); gpu-fraction-container-name
//              (pkg/common/constants/constants.go, pkg/common/resources/gpu_sharing.go)
//   container  one of the pod's, the first unless it is named, gets from a config map that KAI's
//              binder writes (pkg/binder/common/gpu_access.go, pkg/binder/plugins/gpusharing):
//              NVIDIA_VISIBLE_DEVICES   the GPUs' UUIDs, which its reservation pods read by NVML,
//                                       each behind k8s.device-plugin.nvidia.com/gpu= where the
//                                       binder was told that NVIDIA's device plugin uses CDI
//              GPU_PORTION, RUNAI_NUM_OF_GPUS   "0.50": the part of each GPU that it accounts,
//                                       rounded to hundredths (pkg/scheduler/cache, BindRequest)
//
// GPU_MEMORY_LIMIT is a name in its constants that nothing sets. KAI's mode NvFractions sets none
// of these variables: there KAI limits memory itself.
//
// The variables tell which container is meant. Pure; thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/control.h"
#include "base/fraction.h"
#include "base/result.h"
#include "kubernetes/nri/runtime_events.h"

namespace prorata::kubernetes {

struct KaiPart {
  std::vector<std::string> gpus;  // UUIDs, at least one
  // Of each of them, one of the two: this part of its memory and time, or so much memory.
  std::optional<Fraction> fraction = {};
  uint64_t memory_bytes = 0;
  Fraction accounted = {};  // by KAI, in hundredths
};

// Nothing: KAI gave it nothing, or it has a share of prorata's already. "bad_annotation", with what
// was read and what is to be written: a part that is no number above 0 and below 1, memory that is
// no number of MiB above 0, both, or neither as KAI bound the pod. "no_gpu": the GPUs are not named
// by their UUIDs, or not as many as the pod asks for.
Result<std::optional<KaiPart>> KaiPartOf(const RuntimePod& pod, const RuntimeContainer& container);

// Whether it runs on a share of prorata's, whoever gave it that.
bool HasShare(const RuntimeContainer& container);

// The share of a pod, whose UID is its name: KAI gives a part to one container of a pod.
std::string ShareNameOfKaiPod(std::string_view pod_uid);
// The UID; nothing: a share that is none of those.
std::optional<std::string> KaiPodOfShare(std::string_view share_name);

// The share that holds the container to its part, limit and guarantee, where `devices` are the
// agent's. A part is one of what programs outside of prorata leave of the GPU, for KAI's parts add
// up to all of it, and the driver takes some. "no_such_device"; "bad_annotation": more memory than
// KAI accounts for the pod.
Result<api::ShareSpec> KaiShare(const KaiPart& part, const RuntimePod& pod,
                                const std::string& container,
                                const std::vector<api::DeviceStatus>& devices);

}  // namespace prorata::kubernetes
