#pragma once

// The webhook's entry in the API server. Thread-safe.

#include <string>

#include "base/result.h"
#include "kubernetes/api/kube_client.h"

namespace prorata::kubernetes {

// Writes the certificate by which the API server knows the webhook into the
// MutatingWebhookConfiguration `name`, if it has another. Errors: KubeClient's.
Status WriteCaBundle(KubeClient& client, const std::string& name,
                     const std::string& certificate_pem);

}  // namespace prorata::kubernetes
