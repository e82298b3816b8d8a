#include "kubernetes/api/kube_config.h"

#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace prorata::kubernetes {
namespace {

constexpr char kServiceAccount[] = "/var/run/secrets/kubernetes.io/serviceaccount";

Result<std::string> ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return FailErrno("kubeconfig", "cannot read '" + path + "'", errno);
  return text.str();
}

// A kubeconfig, and the messages of what is wrong with it.
class Reader {
 public:
  Reader(std::string path, const YAML::Node& root) : path_(std::move(path)), root_(root) {}

  Result<KubeConfig> Read() const {
    const auto context_name = root_["current-context"].as<std::string>("");
    const auto context = Find("contexts", context_name, "context");
    if (!context) return std::unexpected(context.error());
    const auto cluster = Find("clusters", (*context)["cluster"].as<std::string>(""), "cluster");
    if (!cluster) return std::unexpected(cluster.error());
    const auto user = Find("users", (*context)["user"].as<std::string>(""), "user");
    if (!user) return std::unexpected(user.error());
    for (const char* program : {"exec", "auth-provider"}) {
      if ((*user)[program]) {
        return Bad(std::string("its user has ") + program +
                   ", a program that makes tokens, which is not supported; use a user with a "
                   "token or a certificate");
      }
    }
    KubeConfig config;
    config.server = (*cluster)["server"].as<std::string>("");
    while (config.server.ends_with('/')) config.server.pop_back();
    if (config.server.empty()) return Bad("its cluster has no server");
    config.insecure_skip_verify = (*cluster)["insecure-skip-tls-verify"].as<bool>(false);
    config.token = (*user)["token"].as<std::string>("");
    config.token_file = Absolute((*user)["tokenFile"].as<std::string>(""));
    Status ok = Pem(*cluster, "certificate-authority", &config.ca_pem);
    if (ok) ok = Pem(*user, "client-certificate", &config.certificate_pem);
    if (ok) ok = Pem(*user, "client-key", &config.key_pem);
    if (!ok) return std::unexpected(ok.error());
    return config;
  }

 private:
  std::unexpected<Error> Bad(const std::string& what) const {
    return Fail("kubeconfig", "the kubeconfig '" + path_ + "' cannot be used: " + what);
  }

  // The entry of this name in "contexts", "clusters" or "users".
  Result<YAML::Node> Find(const char* list, const std::string& name, const char* field) const {
    for (const YAML::Node& entry : root_[list]) {
      if (entry["name"].as<std::string>("") == name && entry[field]) return entry[field];
    }
    return Bad("there is no '" + name + "' among its " + list);
  }

  std::string Absolute(const std::string& file) const {
    const size_t slash = path_.rfind('/');
    if (file.empty() || file[0] == '/' || slash == std::string::npos) return file;
    return path_.substr(0, slash + 1) + file;
  }

  // FIELD-data, in base64, or FIELD, a file.
  Status Pem(const YAML::Node& of, const std::string& field, std::string* pem) const {
    if (of[field + "-data"]) {
      const auto bytes = YAML::DecodeBase64(of[field + "-data"].as<std::string>());
      if (bytes.empty()) return Bad(field + "-data is no base64");
      pem->assign(bytes.begin(), bytes.end());
    } else if (of[field]) {
      auto text = ReadText(Absolute(of[field].as<std::string>()));
      if (!text) return std::unexpected(text.error());
      *pem = std::move(*text);
    }
    return {};
  }

  std::string path_;
  YAML::Node root_;
};

}  // namespace

Result<KubeConfig> ReadKubeConfig(const std::string& path) {
  const auto text = ReadText(path);
  if (!text) return std::unexpected(text.error());
  try {
    return Reader(path, YAML::Load(*text)).Read();
  } catch (const YAML::Exception& error) {
    return Fail("kubeconfig", "the kubeconfig '" + path + "' cannot be read: " + error.what());
  }
}

Result<KubeConfig> PodKubeConfig() {
  const char* host = std::getenv("KUBERNETES_SERVICE_HOST");
  const char* port = std::getenv("KUBERNETES_SERVICE_PORT");
  if (host == nullptr || port == nullptr) {
    return Fail("not_in_cluster",
                "this is no pod (KUBERNETES_SERVICE_HOST is not set): give --kubeconfig FILE");
  }
  auto ca = ReadText(std::string(kServiceAccount) + "/ca.crt");
  if (!ca) return std::unexpected(ca.error());
  const std::string name = host;
  KubeConfig config;
  config.server =
      "https://" + (name.find(':') == std::string::npos ? name : "[" + name + "]") + ":" + port;
  config.ca_pem = std::move(*ca);
  config.token_file = std::string(kServiceAccount) + "/token";
  return config;
}

}  // namespace prorata::kubernetes
