#include "kubernetes/kubectl/pod_shares.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/fraction.h"
#include "cli/text/tables.h"
#include "cli/top/top_view.h"
#include "kubernetes/dra/claim.h"
#include "kubernetes/kai/kai_part.h"
#include "kubernetes/plugin/container_shares.h"
#include "kubernetes/plugin/kubelet_checkpoint.h"
#include "kubernetes/pods/pod_request.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

struct PodPlace {
  std::string pod_namespace;
  std::string pod;
  std::string container;
};

// Of whatever a newer API server says: never throws.
std::string FieldText(const json& object, const char* field) {
  const auto found = object.is_object() ? object.find(field) : object.end();
  return object.is_object() && found != object.end() && found->is_string()
             ? found->get<std::string>()
             : "";
}

const json& FieldOf(const json& object, const char* field) {
  static const json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(field);
  return found == object.end() ? kNone : *found;
}

// "containerd://ab12...": the id alone.
std::string IdOf(const std::string& container_id) {
  const size_t end = container_id.find("://");
  return end == std::string::npos ? container_id : container_id.substr(end + 3);
}

std::map<std::string, PodPlace> PodsByUid(const json& pods) {
  std::map<std::string, PodPlace> places;
  for (const json& pod : pods) {
    const json& metadata = FieldOf(pod, "metadata");
    const std::string uid = FieldText(metadata, "uid");
    if (uid.empty()) continue;
    places[uid] = {FieldText(metadata, "namespace"), FieldText(metadata, "name"), ""};
  }
  return places;
}

std::map<std::string, PodPlace> PlacesById(const json& pods) {
  std::map<std::string, PodPlace> places;
  for (const json& pod : pods) {
    const json& metadata = FieldOf(pod, "metadata");
    for (const char* list : {"containerStatuses", "initContainerStatuses"}) {
      for (const json& status : FieldOf(FieldOf(pod, "status"), list)) {
        const std::string id = IdOf(FieldText(status, "containerID"));
        if (id.empty()) continue;
        places[id] = {FieldText(metadata, "namespace"), FieldText(metadata, "name"),
                      FieldText(status, "name")};
      }
    }
  }
  return places;
}

// The containers of a pod that refer to a claim: "main", "main,worker"; "-": none does.
std::string ContainersOf(const json& pod, const std::string& claim) {
  std::set<std::string> entries;
  for (const auto& [list, field] : {std::pair("/status/resourceClaimStatuses", "resourceClaimName"),
                                    std::pair("/spec/resourceClaims", "resourceClaimName")}) {
    const json::json_pointer at(list);
    if (!pod.contains(at)) continue;
    for (const json& entry : pod.at(at)) {
      if (FieldText(entry, field) == claim) entries.insert(FieldText(entry, "name"));
    }
  }
  std::string names;
  for (const char* list : {"initContainers", "containers"}) {
    for (const json& container : FieldOf(FieldOf(pod, "spec"), list)) {
      const json& used = FieldOf(FieldOf(container, "resources"), "claims");
      if (std::any_of(used.begin(), used.end(),
                      [&](const json& of) { return entries.contains(FieldText(of, "name")); })) {
        names += (names.empty() ? "" : ",") + FieldText(container, "name");
      }
    }
  }
  return names.empty() ? "-" : names;
}

std::map<std::string, std::vector<PodPlace>> PlacesByShare(const json& pods, const json& claims) {
  std::map<std::pair<std::string, std::string>, const json*> pod_at;
  for (const json& pod : pods) {
    const json& metadata = FieldOf(pod, "metadata");
    pod_at[{FieldText(metadata, "namespace"), FieldText(metadata, "name")}] = &pod;
  }
  std::map<std::string, std::vector<PodPlace>> places;
  for (const json& claim : claims) {
    const json& metadata = FieldOf(claim, "metadata");
    const std::string pod_namespace = FieldText(metadata, "namespace");
    auto& of = places[ShareNameOfClaim(FieldText(metadata, "uid"))];
    for (const json& user : FieldOf(FieldOf(claim, "status"), "reservedFor")) {
      const std::string name = FieldText(user, "name");
      const auto pod = pod_at.find({pod_namespace, name});
      of.push_back(
          {pod_namespace, name,
           pod == pod_at.end() ? "-" : ContainersOf(*pod->second, FieldText(metadata, "name"))});
    }
  }
  return places;
}

// The container that a share is for, whether or not a program of it runs there.
HoldingContainer HolderOf(const NodeShares& node, const std::string& share) {
  if (const auto uid = KaiPodOfShare(share)) return {*uid, "-"};
  const auto holder = node.holders.find(share);
  return holder == node.holders.end() ? HoldingContainer() : holder->second;
}

// The resource that the device plugin was told to offer memory by.
std::string MemoryResourceOf(const json& plugin_pod) {
  static constexpr std::string_view kOption = "--memory-resource";
  std::string name = ResourceNames().memory;
  for (const json& container : FieldOf(FieldOf(plugin_pod, "spec"), "containers")) {
    bool next = false;
    for (const char* list : {"command", "args"}) {
      for (const json& word : FieldOf(container, list)) {
        const std::string text = word.is_string() ? word.get<std::string>() : "";
        if (next) name = text;
        next = text == kOption;
        if (text.starts_with(std::string(kOption) + "=")) name = text.substr(kOption.size() + 1);
      }
    }
  }
  return name;
}

std::string RequestText(const api::ShareDevice& on) {
  return FormatPercent(on.compute_request) + "-" + FormatPercent(on.compute_limit);
}

std::string LastReason(const json& pod, const json& events) {
  for (const json& condition : FieldOf(FieldOf(pod, "status"), "conditions")) {
    if (FieldText(condition, "type") == "PodScheduled" &&
        FieldText(condition, "status") == "False") {
      return FieldText(condition, "message");
    }
  }
  std::string last;
  for (const json& event : events) {
    if (FieldText(event, "type") == "Warning") {
      last = FieldText(event, "reason") + ": " + FieldText(event, "message");
    }
  }
  return last;
}

}  // namespace

std::map<std::string, HoldingContainer> HoldersOf(const std::string& checkpoint,
                                                  const json& plugin_pod) {
  std::map<std::string, HoldingContainer> holders;
  const auto grants = ParseKubeletCheckpoint(checkpoint);
  if (!grants) return holders;
  const std::string memory = MemoryResourceOf(plugin_pod);
  for (const DeviceGrant& grant : *grants) {
    const auto share = ShareOfUnits(grant.ids);
    if (share && grant.resource == memory) holders[*share] = {grant.pod_uid, grant.container};
  }
  return holders;
}

std::vector<PodShare> PodShares(const json& pods, const json& claims,
                                const std::vector<NodeShares>& nodes) {
  const auto by_id = PlacesById(pods);
  const auto by_uid = PodsByUid(pods);
  const auto by_share = PlacesByShare(pods, claims);
  std::vector<PodShare> found;
  for (const NodeShares& node : nodes) {
    for (const api::ShareStatus& share : node.shares) {
      const auto container = share.container ? by_id.find(share.container->id) : by_id.end();
      if (container != by_id.end()) {
        const PodPlace& at = container->second;
        found.push_back({node.node, at.pod_namespace, at.pod, at.container, share});
        continue;
      }
      const HoldingContainer holder = HolderOf(node, share.name);
      const auto pod = by_uid.find(holder.pod_uid);
      if (pod != by_uid.end()) {
        found.push_back(
            {node.node, pod->second.pod_namespace, pod->second.pod, holder.container, share});
        continue;
      }
      const auto claim = by_share.find(share.name);
      if (claim == by_share.end() || claim->second.empty()) {
        found.push_back({node.node, "-", share.name, "-", share});
        continue;
      }
      for (const PodPlace& at : claim->second) {
        found.push_back({node.node, at.pod_namespace, at.pod, at.container, share});
      }
    }
  }
  std::sort(found.begin(), found.end(), [](const PodShare& a, const PodShare& b) {
    return std::tie(a.pod_namespace, a.pod, a.container) <
           std::tie(b.pod_namespace, b.pod, b.container);
  });
  return found;
}

std::string PodTable(const std::vector<PodShare>& shares) {
  std::vector<std::vector<std::string>> rows = {{"NAMESPACE", "POD", "CONTAINER", "NODE", "GPU",
                                                 "MEMORY", "COMPUTE", "GPU TIME", "ENTITLED",
                                                 "WHY"}};
  for (const PodShare& of : shares) {
    for (const api::ShareDevice& on : of.share.devices) {
      rows.push_back({of.pod_namespace, of.pod, of.container, of.node, std::to_string(on.index),
                      cli::MemoryText(on.used_bytes, on.memory_limit_bytes), RequestText(on),
                      cli::PercentText(on.achieved), cli::EntitledText(on), cli::WhyWords(on)});
    }
  }
  return cli::FormatRows(rows);
}

std::string WhyText(const json& pod, const json& events, const std::vector<PodShare>& shares) {
  const std::string name = FieldText(FieldOf(pod, "metadata"), "name");
  const std::string pod_namespace = FieldText(FieldOf(pod, "metadata"), "namespace");
  std::string text;
  for (const PodShare& of : shares) {
    if (of.pod != name || of.pod_namespace != pod_namespace) continue;
    for (const api::ShareDevice& on : of.share.devices) {
      text += (of.container == "-" ? "pod " + name : "container " + of.container) + " on GPU " +
              std::to_string(on.index) + " of " + of.node + ": " + cli::WhyWords(on) + "\n  has " +
              cli::PercentText(on.achieved) + " of the GPU's time (request-limit " +
              RequestText(on) + ", entitled " + cli::EntitledText(on) + "), holds " +
              cli::MemoryText(on.used_bytes, on.memory_limit_bytes) + "\n";
      if (on.refusals > 0) {
        text += "  allocations refused: " + std::to_string(on.refusals) + "\n";
      }
    }
  }
  if (!text.empty()) return text;
  const std::string reason = LastReason(pod, events);
  return "pod " + name + " has no share" + (reason.empty() ? "" : ": " + reason) + "\n";
}

}  // namespace prorata::kubernetes
