#include "kubernetes/plugin/plugin_upkeep.h"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// What no event reports, such as shares that are no pod's, is seen this late.
constexpr seconds kLookEvery{5};
constexpr seconds kLookWithin{10};
constexpr milliseconds kLookPause{100};
// The annotation is written again so often, should somebody have removed it or made the node anew.
constexpr seconds kPublishEvery{30};

}  // namespace

PluginUpkeep::PluginUpkeep(KubeClient& client, Agent& agent, NodePods& pods,
                           ContainerShares& shares, std::string node,
                           std::function<void(const NodeState&)> on_devices)
    : client_(client),
      agent_(agent),
      shares_(shares),
      node_(std::move(node)),
      on_devices_(std::move(on_devices)),
      worker_([this] { Run(); }) {
  ListWatch::Handlers handlers;
  handlers.changed = [this, &pods](const json& pod) {
    pods.Change(pod);
    Kick();
  };
  handlers.gone = [this, &pods](const json& pod) {
    pods.Remove(pod.at("metadata").at("uid"));
    Kick();
  };
  handlers.listed = [this, &pods](const auto& uids) {
    pods.KeepOnly(uids);
    Kick();
  };
  watch_ =
      std::make_unique<ListWatch>(client, "/api/v1/pods?fieldSelector=spec.nodeName%3D" + node_,
                                  "the pods of node " + node_, std::move(handlers));
}

PluginUpkeep::~PluginUpkeep() {
  watch_.reset();
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  due_.notify_all();
  worker_.join();
}

void PluginUpkeep::Kick() {
  {
    const std::lock_guard lock(mutex_);
    kicked_ = true;
  }
  due_.notify_all();
}

void PluginUpkeep::Run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    due_.wait_for(lock, kLookEvery, [this] { return stopped_ || kicked_; });
    if (stopped_) return;
    kicked_ = false;
    lock.unlock();
    Report(LookOnce());
    lock.lock();
    // Pods change many times while they start.
    due_.wait_for(lock, kLookPause, [this] { return stopped_; });
  }
}

Status PluginUpkeep::LookOnce() {
  const auto deadline = steady_clock::now() + kLookWithin;
  const auto state = agent_.List(deadline);
  if (!state) return std::unexpected(state.error());
  on_devices_(*state);
  const auto removed = shares_.RemoveStale(deadline);
  if (removed) {
    for (const std::string& name : *removed) {
      spdlog::info("removed share {}, whose pod is gone", name);
    }
  }
  if (auto ok = Publish(*state); !ok) return ok;
  return removed ? Status{} : std::unexpected(removed.error());
}

Status PluginUpkeep::Publish(const NodeState& state) {
  std::string text = FormatNodeGpus(GpusForPods(state.devices, state.shares, &IsPodShare));
  const auto now = steady_clock::now();
  if (text == published_ && now - published_at_ < kPublishEvery) return {};
  const auto written = client_.Patch(
      "/api/v1/nodes/" + node_, {{"metadata", {{"annotations", {{kNodeGpusAnnotation, text}}}}}});
  if (!written) return std::unexpected(written.error());
  if (text != published_) spdlog::info("wrote the node's GPUs: {}", text);
  published_ = std::move(text);
  published_at_ = now;
  return {};
}

void PluginUpkeep::Report(const Status& outcome) {
  const std::string now = outcome ? "" : outcome.error().message;
  if (now == trouble_) return;
  if (!outcome) {
    spdlog::warn("the node is not up to date: {}; trying again every {} s", now,
                 kLookEvery.count());
  } else {
    spdlog::info("the node is up to date again");
  }
  trouble_ = now;
}

}  // namespace prorata::kubernetes
