#include "kubernetes/plugin/node_pods.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kubernetes/pods/annotations.h"

namespace prorata::kubernetes {

using nlohmann::json;

void NodePods::Change(const json& pod) {
  const json& metadata = pod.at("metadata");
  const std::string uid = metadata.at("uid");
  const std::string phase = pod.value(json::json_pointer("/status/phase"), "");
  if (phase == "Succeeded" || phase == "Failed") return Remove(uid);
  NodePod read{metadata.value("namespace", "") + "/" + metadata.value("name", ""),
               GpuRequestsOf(pod, names_), AnnotationOf(pod, kAssignedGpusAnnotation)};
  if (read.requests && read.requests->empty()) return;
  if (read.requests) read.wishes = WishesOf(pod, *read.requests);
  {
    const std::lock_guard lock(mutex_);
    pods_.insert_or_assign(uid, std::move(read));
  }
  changed_.notify_all();
}

void NodePods::Remove(const std::string& uid) {
  const std::lock_guard lock(mutex_);
  pods_.erase(uid);
}

void NodePods::KeepOnly(const std::unordered_set<std::string>& uids) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pods_, [&](const auto& pod) { return !uids.contains(pod.first); });
  listed_ = true;
}

std::optional<NodePod> NodePods::Find(const std::string& uid, Agent::Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [&] { return pods_.contains(uid); })) {
    return std::nullopt;
  }
  return pods_.at(uid);
}

std::optional<std::unordered_set<std::string>> NodePods::Alive() {
  const std::lock_guard lock(mutex_);
  if (!listed_) return std::nullopt;
  std::unordered_set<std::string> uids;
  for (const auto& [uid, pod] : pods_) uids.insert(uid);
  return uids;
}

}  // namespace prorata::kubernetes
