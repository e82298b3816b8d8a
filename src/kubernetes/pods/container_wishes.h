#pragma once

// What annotations ask of the shares that a pod's containers have by the device plugin: the fields
// of wish.h but for memory and compute, which are the containers' limits. A pod with several such
// containers names the one that it means: prorata.dev/weight.CONTAINER. Pure; thread-safe.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "base/result.h"
#include "kubernetes/pods/pod_request.h"
#include "kubernetes/pods/wish.h"

namespace prorata::kubernetes {

// By container. An init container has none of its own: the share that it uses is a later one's.
// "bad_annotation": ReadWishes'.
Result<std::map<std::string, ShareWish>> WishesOf(const nlohmann::json& pod,
                                                  std::span<const ContainerRequest> requests);

}  // namespace prorata::kubernetes
