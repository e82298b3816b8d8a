#include "apps/kubernetes/webhook.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/kubernetes/device_plugin.h"
#include "apps/kubernetes/ending.h"
#include "kubernetes/admission/certificate.h"
#include "kubernetes/admission/cluster.h"
#include "kubernetes/admission/https_server.h"
#include "kubernetes/admission/registration.h"
#include "kubernetes/admission/review.h"
#include "kubernetes/api/kube_config.h"

namespace prorata::apps {
namespace {

using namespace prorata::kubernetes;

constexpr char kPath[] = "/mutate";
// How soon a renewed certificate is served, and a configuration that lost ours is mended.
constexpr std::chrono::seconds kRenewEvery{60};
constexpr std::chrono::seconds kRetryAfter{1};

struct WebhookOptions {
  std::string kubeconfig;
  HttpsServer::Options serve;
  std::string certificate_file;
  std::string key_file;
  std::vector<std::string> names = {"prorata-webhook.prorata-system.svc"};
  std::string configuration = "prorata";
  std::vector<std::string> translate = {std::begin(kSystems), std::end(kSystems)};
  TranslateTo to = TranslateTo::kWhatTheClusterHas;
  ResourceNames names_of_resources = {};
  bool allow_bypass = false;
};

int EndWith(const Error& error) {
  spdlog::error("{}", error.message);
  return EXIT_FAILURE;
}

// Which certificate is served, and that the API server knows it.
class Trust {
 public:
  Trust(const WebhookOptions& options, KubeClient& client) : options_(options), client_(client) {}

  bool of_files() const { return !options_.certificate_file.empty(); }

  Result<Certificate> Load() {
    auto loaded = of_files() ? ReadCertificate(options_.certificate_file, options_.key_file)
                             : MakeCertificate(options_.names);
    if (loaded) current_ = *loaded;
    return loaded;
  }

  // When to come again.
  std::chrono::seconds Renew(HttpsServer& server) {
    const Status outcome =
        of_files() ? ReadAgain(server)
                   : WriteCaBundle(client_, options_.configuration, current_.certificate_pem);
    const std::string now = outcome ? "" : outcome.error().message;
    if (now != trouble_ && !outcome) {
      spdlog::warn("the API server may not trust the webhook: {}; it is tried again", now);
    } else if (outcome && (first_ || now != trouble_)) {
      spdlog::info("the API server can trust the webhook");
    }
    first_ = first_ && !outcome;
    trouble_ = now;
    return outcome ? kRenewEvery : kRetryAfter;
  }

 private:
  Status ReadAgain(HttpsServer& server) {
    const auto read = ReadCertificate(options_.certificate_file, options_.key_file);
    if (!read) return std::unexpected(read.error());
    if (read->certificate_pem == current_.certificate_pem) return {};
    if (auto ok = server.Use(*read); !ok) return ok;
    spdlog::info("serving the renewed certificate of '{}'", options_.certificate_file);
    current_ = *read;
    return {};
  }

  const WebhookOptions& options_;
  KubeClient& client_;
  Certificate current_;
  std::string trouble_ = {};
  bool first_ = true;
};

int RunWebhook(const WebhookOptions& options) {
  const Ending ending;
  auto config = options.kubeconfig.empty() ? PodKubeConfig() : ReadKubeConfig(options.kubeconfig);
  if (!config) return EndWith(config.error());
  KubeClient client(std::move(*config));
  KubeCluster cluster(client);
  const ReviewOptions review = {Systems(options.translate.begin(), options.translate.end()),
                                options.to, options.names_of_resources, options.allow_bypass};
  Trust trust(options, client);
  const auto certificate = trust.Load();
  if (!certificate) return EndWith(certificate.error());
  auto server = HttpsServer::Start(
      options.serve, *certificate, [&](const std::string& path, const nlohmann::json& body) {
        if (path != kPath) return nlohmann::json{{"error", std::string("POST to ") + kPath}};
        return Review(body, cluster, review);
      });
  if (!server) return EndWith(server.error());
  spdlog::info("serving {} at {}:{}, for the API server at {}", kPath, options.serve.address,
               options.serve.port, client.server());
  int got = -1;
  while (got < 0) got = ending.WaitFor(trust.Renew(**server));
  spdlog::info("ending, by signal {}", got);
  return EXIT_SUCCESS;
}

}  // namespace

void AddWebhook(CLI::App& app, std::function<int()>* run) {
  const auto options = std::make_shared<WebhookOptions>();
  CLI::App* webhook =
      app.add_subcommand("webhook", "checks pods, and translates the names of older systems");
  webhook->add_option("--kubeconfig", options->kubeconfig,
                      "how to reach the API server; without it as a pod does");
  webhook->add_option("--address", options->serve.address, "listen here")->capture_default_str();
  webhook->add_option("--port", options->serve.port, "listen here")->capture_default_str();
  CLI::Option* cert = webhook->add_option("--cert", options->certificate_file,
                                          "a certificate (PEM), read again when it is renewed; "
                                          "without it one is made at each start");
  CLI::Option* key = webhook->add_option("--key", options->key_file, "its key (PEM)");
  cert->needs(key);
  key->needs(cert);
  webhook
      ->add_option("--names", options->names,
                   "without --cert: the names by which the API server calls the webhook")
      ->delimiter(',')
      ->capture_default_str();
  webhook
      ->add_option("--configuration", options->configuration,
                   "without --cert: the MutatingWebhookConfiguration that is given the "
                   "certificate")
      ->capture_default_str();
  webhook
      ->add_option("--translate", options->translate,
                   "whose names are translated: kubeshare, gaiagpu, hami, resources "
                   "(prorata.dev/gpu-memory, gpu-compute), annotations (prorata.dev/memory)")
      ->delimiter(',')
      ->check(CLI::IsMember({"kubeshare", "gaiagpu", "hami", "resources", "annotations"}));
  webhook
      ->add_option("--to", options->to,
                   "into what: claims for the DRA driver, resources of the device plugin, or auto: "
                   "claims where the cluster has the driver")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, TranslateTo>{{"auto", TranslateTo::kWhatTheClusterHas},
                                             {"claims", TranslateTo::kClaims},
                                             {"resources", TranslateTo::kResources}}))
      ->default_str("auto");
  AddResourceNames(webhook, &options->names_of_resources);
  webhook->add_flag("--allow-bypass", options->allow_bypass,
                    "let privileged pods and the like have shares");
  webhook->callback([options, run] { *run = [options] { return RunWebhook(*options); }; });
}

}  // namespace prorata::apps
