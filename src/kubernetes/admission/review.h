#pragma once

// Answers to the API server about pods that are made or changed (admission.k8s.io/v1). Thread-safe.
//
// A pod that asks for parts of GPUs in the names of prorata or of an older system is given claims
// in their place, or the resources of the device plugin; one that contradicts itself or would get
// around its share is refused with one sentence. Annotations about shares are checked when a
// running pod gets them, too.

#include <nlohmann/json_fwd.hpp>

#include "kubernetes/admission/cluster.h"
#include "kubernetes/admission/pod_asks.h"
#include "kubernetes/pods/pod_request.h"

namespace prorata::kubernetes {

// Into what pods are translated: claims, or the device plugin's resources.
enum class TranslateTo { kWhatTheClusterHas, kClaims, kResources };

struct ReviewOptions {
  Systems translate = Systems(std::begin(kSystems), std::end(kSystems));
  TranslateTo to = TranslateTo::kWhatTheClusterHas;
  ResourceNames names = {};   // the device plugin's
  bool allow_bypass = false;  // privileged pods with a share, and the like
};

// From an AdmissionReview's request to its response. Where the request is no dry run, the
// templates that the pod will refer to are made first. What cannot be judged, since the API server
// does not answer, is refused.
nlohmann::json Review(const nlohmann::json& review, Cluster& cluster, const ReviewOptions& options);

}  // namespace prorata::kubernetes
