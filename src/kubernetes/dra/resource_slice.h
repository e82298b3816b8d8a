#pragma once

// This node's GPUs as Kubernetes sees them: one ResourceSlice (resource.k8s.io/v1), a device a GPU,
// which any number of claims may share. Pure; thread-safe.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "api/control.h"
#include "kubernetes/dra/claim.h"

namespace prorata::kubernetes {

// What a claim gets memory in, at least one of it.
inline constexpr uint64_t kMemoryStepBytes = uint64_t{256} << 20;

struct NodeReference {
  std::string name;
  std::string uid;
};

// The slice's name: one node has one.
std::string SliceName(const std::string& node);

// Whether nothing new is to be placed on a device, as its driver (NVML) does not answer.
bool IsSick(const api::DeviceStatus& device);

// Its devices, the fullest first: the scheduler's allocator takes the first that fits, so this is
// best fit. A device's capacity is what claims may have of it together: all of it but what is no
// share's (the driver's memory, programs outside) and what was promised to shares that are no
// claims (`prorata create` and `run` on the node), and what shares of claims have beyond what was
// allocated (`allocated`; src/kubernetes/resize). A GPU that a share has for itself (--mode
// exclusive), or of which less than two steps are left, is not there. One whose driver does not
// answer has a taint: what runs there runs on, and nothing new is placed there.
nlohmann::json SliceDevices(std::span<const api::DeviceStatus> devices,
                            std::span<const api::ShareStatus> shares,
                            const AllocatedClaims& allocated = {});

// The whole object. The node owns it, so that it goes with the node. `generation`: above that of
// each slice of the pool before.
nlohmann::json MakeSlice(const NodeReference& node, nlohmann::json devices, int64_t generation);

// Of an object of the API server's: 0 where it has none.
int64_t GenerationOf(const nlohmann::json& slice);
// Of devices that are to be written; true: there were some.
bool DropTaints(nlohmann::json* devices);
// Whether it says what MakeSlice would say with these devices.
bool SaysTheSame(const nlohmann::json& slice, const NodeReference& node,
                 const nlohmann::json& devices);

}  // namespace prorata::kubernetes
