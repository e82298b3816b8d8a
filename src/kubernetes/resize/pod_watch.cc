#include "kubernetes/resize/pod_watch.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

constexpr char kPods[] = "/api/v1/pods?";
constexpr std::chrono::milliseconds kRetryAfter{1'000};

}  // namespace

PodWatch::PodWatch(KubeClient& client, std::string node, std::function<void()> changed)
    : client_(client),
      selector_("fieldSelector=spec.nodeName%3D" + node),
      changed_(std::move(changed)),
      thread_([this] { Run(); }) {}

PodWatch::~PodWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

std::optional<std::vector<PodView>> PodWatch::Pods() const {
  const std::lock_guard lock(mutex_);
  if (!listed_) return std::nullopt;
  return pods_.WithClaims();
}

void PodWatch::Run() {
  while (!stopped_) {
    Status outcome = list_is_due_ ? ListOnce() : Status{};
    if (outcome) outcome = WatchOnce();
    if (stopped_) return;
    Report(outcome);
    if (outcome) continue;
    // After any error, since an event may have been missed.
    list_is_due_ = true;
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, kRetryAfter, [this] { return stopped_.load(); });
  }
}

Status PodWatch::ListOnce() {
  const auto list = client_.Get(kPods + selector_);
  if (!list) return std::unexpected(list.error());
  {
    const std::lock_guard lock(mutex_);
    if (auto ok = pods_.Replace(*list); !ok) return ok;
    listed_ = true;
  }
  list_is_due_ = false;
  Report({});
  changed_();
  return {};
}

Status PodWatch::WatchOnce() {
  std::string version;
  {
    const std::lock_guard lock(mutex_);
    version = pods_.resource_version();
  }
  Status applied;
  const auto watched = client_.Watch(
      kPods + selector_ + "&watch=true&allowWatchBookmarks=true&timeoutSeconds=240" +
          "&resourceVersion=" + version,
      [&](const nlohmann::json& event) {
        const std::lock_guard lock(mutex_);
        if (applied) applied = pods_.Apply(event);
        changed_();
      },
      stopped_);
  return watched ? applied : watched;
}

void PodWatch::Report(const Status& outcome) {
  const std::string now = outcome ? "" : outcome.error().message;
  if (now == trouble_) return;
  trouble_ = now;
  if (outcome) {
    spdlog::info("the pods of the node are followed again");
  } else {
    spdlog::warn(
        "the pods of the node cannot be followed, so changed annotations have no effect: {}; "
        "it is tried again each second",
        now);
  }
}

}  // namespace prorata::kubernetes
