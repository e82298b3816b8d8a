#include "kubernetes/admission/join_group.h"

#include <nlohmann/json.hpp>

#include "kubernetes/admission/pod_fields.h"
#include "kubernetes/pods/annotations.h"
#include "kubernetes/pods/pod_group.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr size_t kMaxName = 253;

bool IsLetterOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// As Kubernetes' DNS subdomains.
bool IsObjectName(const std::string& name) {
  if (name.empty() || name.size() > kMaxName) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool inside = i > 0 && i + 1 < name.size();
    if (IsLetterOrDigit(name[i]) || (inside && name[i] == '-')) continue;
    if (!inside || name[i] != '.' || !IsLetterOrDigit(name[i - 1]) ||
        !IsLetterOrDigit(name[i + 1])) {
      return false;
    }
  }
  return true;
}

json PodGroupOf(const std::string& name, size_t size) {
  return {{"apiVersion", "scheduling.k8s.io/v1alpha2"},
          {"kind", "PodGroup"},
          {"metadata", {{"name", name}}},
          {"spec", {{"schedulingPolicy", {{"gang", {{"minCount", size}}}}}}}};
}

}  // namespace

Status JoinGroup(const std::string& name_space, bool dry_run, Cluster& cluster, json* pod,
                 std::vector<std::string>* warnings) {
  const auto group = GroupOf(*pod);
  if (!group) return std::unexpected(group.error());
  if (!*group) return {};
  const std::string asked = *AnnotationOf(*pod, kGroupAnnotation);
  const auto has = cluster.HasGroups();
  if (!has) return std::unexpected(has.error());
  if (!*has) {
    warnings->push_back(
        "the pods of the group '" + asked +
        "' are placed one by one, not all or nothing: with claims that needs Kubernetes' own "
        "groups, which this cluster does not have (feature gates GenericWorkload and "
        "GangScheduling)");
    return {};
  }
  const std::string name = asked + "-" + std::to_string((*group)->size);
  if (!IsObjectName(name)) {
    return BadAsk("the group '" + asked +
                  "' has no name for a PodGroup of Kubernetes': use small letters, digits, '-' "
                  "and '.', and begin with a letter or a digit");
  }
  const json::json_pointer where("/spec/schedulingGroup/podGroupName");
  const std::string other = pod->value(where, name);
  if (other != name) {
    return BadAsk("the pod is of the PodGroup '" + other + "', and its annotations say it is of '" +
                  name + "'; keep one of the two");
  }
  if (!dry_run) {
    if (auto ok = cluster.EnsureGroup(name_space, PodGroupOf(name, (*group)->size)); !ok) return ok;
  }
  (*pod)[where] = name;
  return {};
}

}  // namespace prorata::kubernetes
