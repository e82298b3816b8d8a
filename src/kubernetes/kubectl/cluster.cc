#include "kubernetes/kubectl/cluster.h"

#include <future>
#include <map>
#include <utility>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

// The DaemonSets whose pods have the node's agent (deploy/kubernetes and its like).
constexpr const char* kNodePods = "app in (prorata-dra, prorata-device-plugin, prorata-nri)";
constexpr const char* kPluginApp = "prorata-device-plugin";
// Where the device plugin's pods have it.
constexpr const char* kCheckpoint = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

std::string PodText(const json& object, const char* pointer) {
  const auto at = json::json_pointer(pointer);
  return object.contains(at) && object.at(at).is_string() ? object.at(at).get<std::string>() : "";
}

// `pod`: prorata's on the node.
Result<NodeShares> AskNode(const Kubectl& kubectl, const std::string& node, const json& pod) {
  const std::vector<std::string> in_pod = {"exec",
                                           "--namespace=" + PodText(pod, "/metadata/namespace"),
                                           PodText(pod, "/metadata/name"), "--"};
  const auto run = [&](std::vector<std::string> command) {
    command.insert(command.begin(), in_pod.begin(), in_pod.end());
    return kubectl.Run(command);
  };
  auto said = run({"prorata", "ps", "--json"});
  if (!said) return std::unexpected(said.error());
  const json list = json::parse(*said, nullptr, false);
  if (!list.is_array()) return Fail("bad_answer", "its agent did not answer with a list of shares");
  NodeShares found{node, {}};
  for (const json& item : list) {
    auto share = api::ShareFromJson(item);
    if (!share) return std::unexpected(share.error());
    found.shares.push_back(std::move(*share));
  }
  if (PodText(pod, "/metadata/labels/app") == kPluginApp) {
    // Without it shares are known by the programs on them.
    const auto checkpoint = run({"cat", kCheckpoint});
    if (checkpoint) found.holders = HoldersOf(*checkpoint, pod);
  }
  return found;
}

}  // namespace

Result<json> GetItems(const Kubectl& kubectl, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "get");
  arguments.push_back("--output=json");
  const auto said = kubectl.Run(arguments);
  if (!said) return std::unexpected(said.error());
  json list = json::parse(*said, nullptr, false);
  if (!list.is_object() || !list.value("items", json()).is_array()) {
    return Fail("bad_answer", "kubectl did not print a list of " + arguments[1]);
  }
  return std::move(list["items"]);
}

Result<ClusterShares> AskCluster(const Kubectl& kubectl, const std::string& system_namespace,
                                 const std::string& pod_namespace) {
  const auto nodes = GetItems(
      kubectl, {"pods", "--namespace=" + system_namespace, std::string("--selector=") + kNodePods,
                "--field-selector=status.phase=Running"});
  if (!nodes) return std::unexpected(nodes.error());
  std::map<std::string, json> pod_of;
  for (const json& pod : *nodes) pod_of.emplace(PodText(pod, "/spec/nodeName"), pod);
  if (pod_of.empty()) {
    return Fail("no_node", "no pod of prorata's runs in namespace '" + system_namespace +
                               "': is it installed there (docs/guide/kubernetes.md), or elsewhere "
                               "(--system-namespace)?");
  }
  std::map<std::string, std::future<Result<NodeShares>>> answers;
  for (const auto& [node, pod] : pod_of) {
    answers.emplace(node, std::async(std::launch::async, AskNode, std::cref(kubectl), node, pod));
  }
  // Claims are not known to clusters before 1.34.
  const auto claims = GetItems(kubectl, {"resourceclaims", "--all-namespaces"});
  const auto pods = GetItems(kubectl, {"pods", "--all-namespaces"});
  ClusterShares found;
  std::vector<NodeShares> shares;
  for (auto& [node, answer] : answers) {
    auto said = answer.get();
    if (said) {
      shares.push_back(std::move(*said));
    } else {
      found.problems.push_back("node " + node + " did not answer: " + said.error().message);
    }
  }
  if (!pods) return std::unexpected(pods.error());
  for (PodShare& share : PodShares(*pods, claims ? *claims : json::array(), shares)) {
    if (pod_namespace.empty() || share.pod_namespace == pod_namespace) {
      found.shares.push_back(std::move(share));
    }
  }
  return found;
}

}  // namespace prorata::kubernetes
