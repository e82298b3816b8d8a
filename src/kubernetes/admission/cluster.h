#pragma once

// What the webhook asks of the cluster. Thread-safe.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/api/kube_client.h"

namespace prorata::kubernetes {

class Cluster {
 public:
  virtual ~Cluster() = default;

  // Errors of all: KubeClient's.
  // The sizes of the memory of prorata's GPUs, each once; of half a minute ago at most.
  virtual Result<std::vector<uint64_t>> GpuSizes() = 0;
  // Whether an entry of a pod's spec.resourceClaims is of prorata's class. One whose claim or
  // template is not there yet is not.
  virtual Result<bool> IsOfProrata(const std::string& name_space, const nlohmann::json& entry) = 0;
  // Makes a ResourceClaimTemplate, or finds it made.
  virtual Status EnsureTemplate(const std::string& name_space,
                                const nlohmann::json& claim_template) = 0;
};

class KubeCluster final : public Cluster {
 public:
  explicit KubeCluster(KubeClient& client) : client_(client) {}

  Result<std::vector<uint64_t>> GpuSizes() override;
  Result<bool> IsOfProrata(const std::string& name_space, const nlohmann::json& entry) override;
  Status EnsureTemplate(const std::string& name_space,
                        const nlohmann::json& claim_template) override;

 private:
  KubeClient& client_;

  std::mutex mutex_;
  std::vector<uint64_t> sizes_;  // as they were at `sizes_read_`
  std::optional<std::chrono::steady_clock::time_point> sizes_read_;
};

}  // namespace prorata::kubernetes
