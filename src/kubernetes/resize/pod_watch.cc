#include "kubernetes/resize/pod_watch.h"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace prorata::kubernetes {

using nlohmann::json;

PodWatch::PodWatch(KubeClient& client, const std::string& node, std::function<void()> changed)
    : changed_(std::move(changed)),
      watch_(client, "/api/v1/pods?fieldSelector=spec.nodeName%3D" + node,
             "the pods of node " + node,
             {[this](const json& pod) {
                const std::lock_guard lock(mutex_);
                if (auto ok = pods_.Change(pod); !ok) spdlog::warn("{}", ok.error().message);
                if (listed_) changed_();
              },
              [this](const json& pod) {
                const std::lock_guard lock(mutex_);
                pods_.Remove(pod.at("metadata").at("uid"));
                changed_();
              },
              [this](const auto& uids) { Listed(uids); }}) {}

void PodWatch::Listed(const std::unordered_set<std::string>& uids) {
  {
    const std::lock_guard lock(mutex_);
    pods_.KeepOnly(uids);
    listed_ = true;
  }
  changed_();
}

std::optional<std::vector<PodView>> PodWatch::Pods() const {
  const std::lock_guard lock(mutex_);
  if (!listed_) return std::nullopt;
  return pods_.WithClaims();
}

}  // namespace prorata::kubernetes
