#include "apps/kubernetes/gpu_resources.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "apps/kubernetes/ending.h"
#include "kubernetes/api/kube_client.h"
#include "kubernetes/api/kube_config.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/extender/claim_extender.h"
#include "kubernetes/extender/extender.h"
#include "kubernetes/extender/http_server.h"
#include "kubernetes/kubelet/device_plugin_server.h"
#include "kubernetes/notices/pod_notices.h"
#include "kubernetes/plugin/container_shares.h"
#include "kubernetes/plugin/kubelet_checkpoint.h"
#include "kubernetes/plugin/node_pods.h"
#include "kubernetes/plugin/plugin_upkeep.h"

namespace prorata::apps {
namespace {

using namespace prorata::kubernetes;

struct RoleOptions {
  std::string node = {};
  std::string kubeconfig = {};
  std::string plugins_dir = "/var/lib/kubelet/device-plugins";
  std::string agent_dir = "/run/prorata";
  std::string listen = "127.0.0.1";
  uint16_t port = 8787;
  bool claims = false;
  ResourceNames names = {};
};

int Failed(const Error& error) {
  spdlog::error("{}", error.message);
  return EXIT_FAILURE;
}

DeviceCounts CountsOf(const NodeState& state) {
  DeviceCounts counts;
  for (const api::DeviceStatus& device : state.devices) {
    counts.memory += static_cast<uint32_t>(device.total_bytes / kMemoryUnitBytes);
    counts.compute += kWholeGpuPercent;
  }
  return counts;
}

int RunDevicePlugin(const RoleOptions& options) {
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

// `Role`: Extender or ClaimExtender.
template <typename Role>
int Serve(const RoleOptions& options, const Ending& ending, KubeClient& client, Role& role) {
  const auto handle = [&role](bool post, std::string_view path, std::string_view body) {
    if (path == "/healthz") {
      const bool ready = role.Ready();
      return HttpReply{ready ? 200U : 503U, ready ? "ok\n" : "reading the cluster\n", "text/plain"};
    }
    if (!post) return HttpReply{405, "calls of the scheduler are POSTs\n", "text/plain"};
    auto answer = role.Answer(path, body);
    if (!answer) return HttpReply{404, answer.error().message + "\n", "text/plain"};
    return HttpReply{200, std::move(*answer)};
  };
  const auto server = HttpServer::Start(options.listen, options.port, handle);
  if (!server) return Failed(server.error());
  spdlog::info("serving the scheduler at http://{}:{}, for the cluster at {}", options.listen,
               (*server)->port(), client.server());
  spdlog::info("ending, by signal {}", ending.Wait());
  return EXIT_SUCCESS;
}

int RunExtender(const RoleOptions& options) {
  const Ending ending;
  auto config = options.kubeconfig.empty() ? PodKubeConfig() : ReadKubeConfig(options.kubeconfig);
  if (!config) return Failed(config.error());
  KubeClient client(std::move(*config));
  if (options.claims) {
    ClaimExtender extender(client);
    return Serve(options, ending, client, extender);
  }
  Extender extender(client, options.names);
  return Serve(options, ending, client, extender);
}

void AddCommon(CLI::App* role, RoleOptions* options) {
  role->add_option("--kubeconfig", options->kubeconfig,
                   "how to reach the API server; without it as a pod does");
  AddResourceNames(role, &options->names);
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
  const auto options = std::make_shared<RoleOptions>();
  CLI::App* role = app.add_subcommand("device-plugin", "the device plugin of a node");
  AddCommon(role, options.get());
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

void AddExtender(CLI::App& app, std::function<int()>* run) {
  const auto options = std::make_shared<RoleOptions>();
  CLI::App* role = app.add_subcommand("extender", "the extender of the cluster's scheduler");
  AddCommon(role, options.get());
  role->add_option("--listen", options->listen, "the address at which the scheduler calls")
      ->capture_default_str();
  role->add_option("--port", options->port, "its port")->capture_default_str();
  role->add_flag("--claims", options->claims,
                 "for clusters with DRA: only prioritize the nodes of pods with claims");
  role->callback([options, run] { *run = [options] { return RunExtender(*options); }; });
}

}  // namespace prorata::apps
