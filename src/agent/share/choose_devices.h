#pragma once

// Which devices a share is asked for on: part of ValidateShare (control.h). Pure; thread-safe.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "api/control.h"
#include "base/result.h"

namespace prorata::agent {

// "GPU 2 (GPU-8-4-4-4-12)", and "1 other share", for people.
std::string Describe(const api::DeviceStatus& device);
std::string OtherShares(uint64_t count);

// The devices that `spec` names, in its order; or, of those where the share `fits`, as many as it
// asks for, chosen by policy::ChooseLinked. Indices in `devices`. Errors: "unknown_gpu",
// "gpu_twice", "gpu_count", and where nothing fits what `fits` says.
Result<std::vector<size_t>> ChooseDevices(
    const api::ShareSpec& spec, std::span<const api::DeviceStatus> devices,
    const std::function<Status(const api::DeviceStatus&)>& fits);

// For each device of a share (`own`, indices in `devices`) what `on` says of it, or empty terms.
// Errors: "gpu_not_in_share", "gpu_twice".
Result<std::vector<api::TermsOnGpu>> MatchTerms(std::span<const api::TermsOnGpu> on,
                                                std::span<const size_t> own,
                                                std::span<const api::DeviceStatus> devices);

}  // namespace prorata::agent
