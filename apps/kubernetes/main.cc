// prorata-kubernetes: what prorata does in a cluster, one role a sub-command.

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kubernetes/device_plugin.h"
#include "apps/kubernetes/ending.h"
#include "apps/kubernetes/extender.h"
#include "apps/kubernetes/kubectl.h"
#include "apps/kubernetes/nri.h"
#include "apps/kubernetes/webhook.h"
#include "base/standard_descriptors.h"
#include "kubernetes/api/kube_client.h"
#include "kubernetes/api/kube_config.h"
#include "kubernetes/dra/agent_client.h"
#include "kubernetes/dra/claim_api.h"
#include "kubernetes/dra/claims.h"
#include "kubernetes/dra/resource_slice.h"
#include "kubernetes/dra/upkeep.h"
#include "kubernetes/kubelet/dra_server.h"
#include "kubernetes/notices/pod_notices.h"
#include "kubernetes/resize/resizer.h"

namespace {

using namespace prorata::kubernetes;

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr std::chrono::seconds kListWithin{10};

struct Options {
  std::string node;
  std::string kubeconfig;
  std::string kubelet_dir = "/var/lib/kubelet";
  std::string agent_dir = "/run/prorata";
};

int FailWith(const prorata::Error& error) {
  spdlog::error("{}", error.message);
  return kExitFailed;
}

int RunDra(const Options& options) {
  const prorata::apps::Ending ending;
  auto config = options.kubeconfig.empty() ? PodKubeConfig() : ReadKubeConfig(options.kubeconfig);
  if (!config) return FailWith(config.error());
  KubeClient client(std::move(*config));
  AgentClient agent(options.agent_dir + "/control");
  KubeClaimApi claim_api(client);
  // Claims are asked for by the server below alone, which ends first.
  std::function<void()> changed;
  Claims claims(claim_api, agent, options.node, [&changed] { changed(); });
  Upkeep upkeep(client, agent, claims, options.node);
  Resizer resizer(client, agent, claims, options.node, [&upkeep] { upkeep.Changed(); });
  changed = [&upkeep, &resizer] {
    upkeep.Changed();
    resizer.Changed();
  };
  KubePodEvents pod_events(client, "prorata-dra", options.node);
  const PodNotices notices(options.agent_dir + "/control", pod_events, [&](const auto& share) {
    std::vector<ShareHolder> holders;
    const auto claim = claims.Known(ClaimOfShare(share).value_or(""));
    if (!claim) return holders;
    for (PodReference& pod : resizer.PodsOf(*claim)) holders.push_back({std::move(pod), ""});
    return holders;
  });
  DraServerOptions serve;
  serve.kubelet_dir = options.kubelet_dir;
  serve.registered = [&upkeep] {
    spdlog::info("the kubelet registered the driver");
    upkeep.Registered();
  };
  serve.refused = [](const std::string& why) {
    spdlog::error("the kubelet refused the driver: {}", why);
  };
  serve.health = [&]() -> std::optional<std::vector<DeviceHealth>> {
    const auto state = agent.List(std::chrono::steady_clock::now() + kListWithin);
    if (!state) return std::nullopt;
    std::vector<DeviceHealth> health;
    for (const auto& device : state->devices) {
      health.push_back({options.node, DeviceName(device.uuid),
                        IsSick(device) ? "the GPU's driver (NVML) does not answer" : ""});
    }
    return health;
  };
  auto server = DraServer::Start(claims, serve);
  if (!server) return FailWith(server.error());
  spdlog::info("serving node '{}' at {}, for the agent in {}", options.node, client.server(),
               options.agent_dir);
  spdlog::info("ending, by signal {}", ending.Wait());
  server->reset();
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  prorata::ReserveStandardDescriptors();
  if (std::string_view(argv[0]).ends_with("kubectl-prorata")) return RunKubectlPlugin(argc, argv);
  Options options;
  CLI::App app("prorata in Kubernetes");
  app.require_subcommand(1);
  CLI::App* dra = app.add_subcommand("dra", "the DRA driver of a node");
  dra->add_option("--node-name", options.node, "the node's name in the cluster")
      ->envname("NODE_NAME")
      ->required();
  dra->add_option("--kubeconfig", options.kubeconfig,
                  "how to reach the API server; without it as a pod does");
  dra->add_option("--kubelet-dir", options.kubelet_dir, "the kubelet's folder")
      ->capture_default_str();
  dra->add_option("--agent-dir", options.agent_dir, "the folder of the node's agent")
      ->envname("PRORATA_DIR")
      ->capture_default_str();
  std::function<int()> run = [&options] { return RunDra(options); };
  prorata::apps::AddWebhook(app, &run);
  prorata::apps::AddDevicePlugin(app, &run);
  prorata::apps::AddExtender(app, &run);
  prorata::apps::AddNri(app, &run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : kExitUsage;
  }
  return run();
}
