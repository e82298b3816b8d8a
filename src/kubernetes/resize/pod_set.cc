#include "kubernetes/resize/pod_set.h"

#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

// Throws where a field has another type than the API's.
PodView ViewOf(const json& pod) {
  const json& metadata = pod.at("metadata");
  PodView view;
  view.name_space = metadata.at("namespace");
  view.name = metadata.at("name");
  view.uid = metadata.at("uid");
  view.running = pod.value(json::json_pointer("/status/phase"), std::string()) == "Running";
  view.annotations = metadata.value("annotations", Annotations());
  std::map<std::string, std::string> made;
  for (const json& status :
       pod.value(json::json_pointer("/status/resourceClaimStatuses"), json::array())) {
    made[status.at("name")] = status.value("resourceClaimName", "");
  }
  for (const json& entry : pod.at("spec").value("resourceClaims", json::array())) {
    const std::string name = entry.at("name");
    view.claims.push_back({name, entry.value("resourceClaimName", made[name])});
  }
  return view;
}

}  // namespace

Result<PodView> ReadPod(const json& pod) {
  try {
    return ViewOf(pod);
  } catch (const json::exception& error) {
    return Fail("bad_pod", std::string("a pod of the API server's: ") + error.what());
  }
}

Status PodSet::Change(const json& pod) {
  auto view = ReadPod(pod);
  if (!view) return std::unexpected(view.error());
  if (!view->claims.empty()) pods_[view->uid] = std::move(*view);
  return {};
}

void PodSet::Remove(const std::string& uid) { pods_.erase(uid); }

void PodSet::KeepOnly(const std::unordered_set<std::string>& uids) {
  std::erase_if(pods_, [&](const auto& pod) { return !uids.contains(pod.first); });
}

std::vector<PodView> PodSet::WithClaims() const {
  std::vector<PodView> pods;
  for (const auto& [uid, pod] : pods_) pods.push_back(pod);
  return pods;
}

}  // namespace prorata::kubernetes
