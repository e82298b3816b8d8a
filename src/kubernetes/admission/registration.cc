#include "kubernetes/admission/registration.h"

#include <nlohmann/json.hpp>

#include "kubernetes/admission/base64.h"

namespace prorata::kubernetes {
namespace {

constexpr char kConfigurations[] =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/";
constexpr int kAttempts = 5;

Status WriteOnce(KubeClient& client, const std::string& name, const std::string& bundle) {
  auto configuration = client.Get(kConfigurations + name);
  if (!configuration) return std::unexpected(configuration.error());
  bool differs = false;
  for (nlohmann::json& webhook : (*configuration)["webhooks"]) {
    differs |= webhook["clientConfig"].value("caBundle", std::string()) != bundle;
    webhook["clientConfig"]["caBundle"] = bundle;
  }
  if (!differs) return {};
  const auto written = client.Put(kConfigurations + name, *configuration);
  if (!written) return std::unexpected(written.error());
  return {};
}

}  // namespace

Status WriteCaBundle(KubeClient& client, const std::string& name,
                     const std::string& certificate_pem) {
  Status outcome;
  for (int i = 0; i < kAttempts; ++i) {
    outcome = WriteOnce(client, name, EncodeBase64(certificate_pem));
    if (outcome || outcome.error().code != "conflict") break;
  }
  return outcome;
}

}  // namespace prorata::kubernetes
