#include "apps/kubernetes/extender.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "apps/kubernetes/device_plugin.h"
#include "apps/kubernetes/ending.h"
#include "kubernetes/api/kube_client.h"
#include "kubernetes/api/kube_config.h"
#include "kubernetes/extender/claim_extender.h"
#include "kubernetes/extender/extender.h"
#include "kubernetes/extender/http_server.h"

namespace prorata::apps {
namespace {

using namespace prorata::kubernetes;

struct ExtenderOptions {
  std::string kubeconfig = {};
  std::string listen = "127.0.0.1";
  uint16_t port = 8787;
  bool claims = false;
  ResourceNames names = {};
};

// `Role`: Extender or ClaimExtender.
template <typename Role>
int Serve(const ExtenderOptions& options, const Ending& ending, KubeClient& client, Role& role) {
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

int RunExtender(const ExtenderOptions& options) {
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

}  // namespace

void AddExtender(CLI::App& app, std::function<int()>* run) {
  const auto options = std::make_shared<ExtenderOptions>();
  CLI::App* role = app.add_subcommand("extender", "the extender of the cluster's scheduler");
  role->add_option("--kubeconfig", options->kubeconfig,
                   "how to reach the API server; without it as a pod does");
  AddResourceNames(role, &options->names);
  role->add_option("--listen", options->listen, "the address at which the scheduler calls")
      ->capture_default_str();
  role->add_option("--port", options->port, "its port")->capture_default_str();
  role->add_flag("--claims", options->claims,
                 "for clusters with DRA: only prioritize the nodes of pods with claims");
  role->callback([options, run] { *run = [options] { return RunExtender(*options); }; });
}

}  // namespace prorata::apps
