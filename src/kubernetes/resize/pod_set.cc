#include "kubernetes/resize/pod_set.h"

#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

std::string VersionOf(const json& object) {
  return object.value(json::json_pointer("/metadata/resourceVersion"), std::string());
}

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

Status PodSet::Replace(const json& list) {
  std::map<std::string, PodView> pods;
  for (const json& item : list.value("items", json::array())) {
    auto view = ReadPod(item);
    if (!view) return std::unexpected(view.error());
    if (!view->claims.empty()) pods[view->uid] = std::move(*view);
  }
  pods_ = std::move(pods);
  resource_version_ = VersionOf(list);
  return {};
}

Status PodSet::Apply(const json& event) {
  const std::string type = event.value("type", "");
  const json object = event.value("object", json::object());
  if (type == "ERROR") {
    return Fail("gone", "the watch of pods ended: " + object.value("message", object.dump()));
  }
  resource_version_ = VersionOf(object);
  if (type == "BOOKMARK") return {};
  auto view = ReadPod(object);
  if (!view) return std::unexpected(view.error());
  if (type == "DELETED") {
    pods_.erase(view->uid);
  } else if (!view->claims.empty()) {
    pods_[view->uid] = std::move(*view);
  }
  return {};
}

std::vector<PodView> PodSet::WithClaims() const {
  std::vector<PodView> pods;
  for (const auto& [uid, pod] : pods_) pods.push_back(pod);
  return pods;
}

}  // namespace prorata::kubernetes
