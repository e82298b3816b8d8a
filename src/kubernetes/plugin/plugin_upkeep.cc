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
// Pods change many times while they start.
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
      look_(kLookEvery, kLookPause, [this] { Report(LookOnce()); }),
      watch_(client, "/api/v1/pods?fieldSelector=spec.nodeName%3D" + node_,
             "the pods of node " + node_,
             {[this, &pods](const json& pod) {
                pods.Change(pod);
                look_.Soon();
              },
              [this, &pods](const json& pod) {
                pods.Remove(pod.at("metadata").at("uid"));
                look_.Soon();
              },
              [this, &pods](const auto& uids) {
                pods.KeepOnly(uids);
                look_.Soon();
              }}) {
  look_.Soon();
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
  const auto changed = shares_.ApplyWishes(deadline);
  if (changed) {
    for (const std::string& what : *changed) {
      spdlog::info("changed share {}, by its pod's annotations", what);
    }
  }
  if (auto ok = Publish(*state); !ok) return ok;
  if (!removed) return std::unexpected(removed.error());
  return changed ? Status{} : std::unexpected(changed.error());
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
