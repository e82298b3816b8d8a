#pragma once

// Answers to the API server about pods that are made or changed (admission.k8s.io/v1). Thread-safe.
//
// A pod that asks for parts of GPUs in the names of prorata or of an older system is given claims
// in their place; one that contradicts itself or would get around its share is refused with one
// sentence. Annotations that resize shares are checked when a running pod gets them, too.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kubernetes/admission/cluster.h"
#include "kubernetes/admission/pod_asks.h"

namespace prorata::kubernetes {

struct ReviewOptions {
  Systems translate = Systems(std::begin(kSystems), std::end(kSystems));
  bool allow_bypass = false;  // privileged pods with a share, and the like
};

// From an AdmissionReview's request to its response. Where the request is no dry run, the
// templates that the pod will refer to are made first. What cannot be judged, since the API server
// does not answer, is refused.
nlohmann::json Review(const nlohmann::json& review, Cluster& cluster, const ReviewOptions& options);

}  // namespace prorata::kubernetes
