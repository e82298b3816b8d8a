#pragma once

// Groups of pods with claims, all or nothing, are Kubernetes' own business: it has PodGroups for
// that (scheduling.k8s.io, alpha in 1.36: feature gates GenericWorkload and GangScheduling).
// Thread-safe.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/admission/cluster.h"

namespace prorata::kubernetes {

// Makes the pod one of the PodGroup that its annotations (pods/pod_group.h) speak of, which is made
// unless this is a dry run. Nothing removes it: like a template it is named by what it says. Where
// the cluster has no PodGroups the pod stays as it is, and a warning says so. "bad_annotation",
// "bad_ask" (a name that no PodGroup can have, a pod of another PodGroup), Cluster's.
Status JoinGroup(const std::string& name_space, bool dry_run, Cluster& cluster, nlohmann::json* pod,
                 std::vector<std::string>* warnings);

}  // namespace prorata::kubernetes
