#include "apps/kubernetes/device_plugin.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "apps/kubernetes/ending.h"
#include "kubernetes/api/kube_client.h"
#include "kubernetes/api/kube_config.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/kubelet/device_plugin_server.h"
#include "kubernetes/notices/pod_notices.h"
#include "kubernetes/plugin/container_shares.h"
#include "kubernetes/plugin/kubelet_checkpoint.h"
#include "kubernetes/plugin/node_pods.h"
#include "kubernetes/plugin/plugin_upkeep.h"

namespace prorata::apps {
namespace {

using namespace prorata::kubernetes;

struct PluginOptions {
  std::string node = {};
  std::string kubeconfig = {};
  std::string plugins_dir = "/var/lib/kubelet/device-plugins";
  std::string agent_dir = "/run/prorata";
  ResourceNames names = {};
};

DeviceCounts CountsOf(const NodeState& state) {
  DeviceCounts counts;
  for (const api::DeviceStatus& device : state.devices) {
    counts.memory += static_cast<uint32_t>(device.total_bytes / kMemoryUnitBytes);
    counts.compute += kWholeGpuPercent;
  }
  return counts;
}

int RunDevicePlugin(const PluginOptions& options) {
  const Ending ending;
  auto config = options.kubeconfig.empty() ? PodKubeConfig() : ReadKubeConfig(options.kubeconfig);
  if (!config) return Failed(config.error());
  KubeClient client(std::move(*config));
  AgentClient agent(options.agent_dir + "/control");
  NodePods pods(options.names);
  const auto read = [path = options.plugins_dir + "/kubelet_internal_checkpoint"] {
    return ReadKubeletCheckpoint(path);
  };
  ContainerShares shares(agent, pods, read, options.names);
  DevicePluginServer server(shares, {options.plugins_dir, options.names});
  const PluginUpkeep upkeep(
      client, agent, pods, shares, options.node,
      [&server](const NodeState& state) { server.SetCounts(CountsOf(state)); });
  KubePodEvents pod_events(client, "prorata-device-plugin", options.node);
  const PodNotices notices(options.agent_dir + "/control", pod_events, [&](const auto& share) {
    const auto holder = shares.HolderOf(share);
    return holder ? std::vector{*holder} : std::vector<ShareHolder>();
  });
  spdlog::info("serving node '{}' at {}, for the agent in {}", options.node, client.server(),
               options.agent_dir);
  spdlog::info("ending, by signal {}", ending.Wait());
  return EXIT_SUCCESS;
}

}  // namespace

void AddResourceNames(CLI::App* role, ResourceNames* names) {
  role->add_option("--compute-resource", names->compute,
                   "the resource of which a GPU has 100: hundredths of its time")
      ->capture_default_str();
  role->add_option("--memory-resource", names->memory,
                   "the resource of GPU memory, in units of 256 MiB")
      ->capture_default_str();
}

void AddDevicePlugin(CLI::App& app, std::function<int()>* run) {
  const auto options = std::make_shared<PluginOptions>();
  CLI::App* role = app.add_subcommand("device-plugin", "the device plugin of a node");
  role->add_option("--kubeconfig", options->kubeconfig,
                   "how to reach the API server; without it as a pod does");
  AddResourceNames(role, &options->names);
  role->add_option("--node-name", options->node, "the node's name in the cluster")
      ->envname("NODE_NAME")
      ->required();
  role->add_option("--plugins-dir", options->plugins_dir, "the kubelet's folder of device plugins")
      ->capture_default_str();
  role->add_option("--agent-dir", options->agent_dir, "the folder of the node's agent")
      ->envname("PRORATA_DIR")
      ->capture_default_str();
  role->callback([options, run] { *run = [options] { return RunDevicePlugin(*options); }; });
}

}  // namespace prorata::apps
