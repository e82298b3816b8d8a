#pragma once

// Where a cluster's API server is and who we are to it: from a kubeconfig file, or from what every
// pod is given.

#include <string>

#include "base/result.h"

namespace prorata::kubernetes {

struct KubeConfig {
  std::string server;  // "https://10.0.0.1:6443", without a slash at the end
  // Certificates and keys as PEM. Empty: the system's authorities, no certificate of ours.
  std::string ca_pem = {};
  std::string certificate_pem = {};
  std::string key_pem = {};
  bool insecure_skip_verify = false;
  std::string token = {};
  std::string token_file = {};  // read for each request: a pod's token is replaced each hour
};

// The current context of a kubeconfig. "kubeconfig": it cannot be read, or names what is not there
// or not supported (programs that make tokens: exec, auth-provider).
Result<KubeConfig> ReadKubeConfig(const std::string& path);

// What a pod finds of its service account. "not_in_cluster": this is no pod, or one without.
Result<KubeConfig> PodKubeConfig();

}  // namespace prorata::kubernetes
