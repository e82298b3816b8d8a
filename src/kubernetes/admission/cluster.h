#pragma once

// What the webhook asks of the cluster. Thread-safe.

#include <atomic>
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

  // Where the cluster's GPUs are described: in the DRA driver's slices, or on the nodes.
  enum class GpusOf { kSlices, kNodes };

  // Errors of all: KubeClient's.
  // Whether the cluster has prorata's DRA driver: the class of its devices. Once it has, it has.
  virtual Result<bool> HasDriver() = 0;
  // The sizes of the memory of prorata's GPUs, in whole units of 256 MiB where the device plugin
  // says them, each once; of half a minute ago at most.
  virtual Result<std::vector<uint64_t>> GpuSizes(GpusOf where) = 0;
  // Whether an entry of a pod's spec.resourceClaims is of prorata's class. One whose claim or
  // template is not there yet is not.
  virtual Result<bool> IsOfProrata(const std::string& name_space, const nlohmann::json& entry) = 0;
  // Makes a ResourceClaimTemplate, or finds it made.
  virtual Status EnsureTemplate(const std::string& name_space,
                                const nlohmann::json& claim_template) = 0;
  // Whether the cluster has Kubernetes' own groups of pods (PodGroup, alpha in 1.36).
  virtual Result<bool> HasGroups() = 0;
  // Makes a PodGroup, or finds it made.
  virtual Status EnsureGroup(const std::string& name_space, const nlohmann::json& group) = 0;
};

class KubeCluster final : public Cluster {
 public:
  explicit KubeCluster(KubeClient& client) : client_(client) {}

  Result<bool> HasDriver() override;
  Result<std::vector<uint64_t>> GpuSizes(GpusOf where) override;
  Result<bool> IsOfProrata(const std::string& name_space, const nlohmann::json& entry) override;
  Status EnsureTemplate(const std::string& name_space,
                        const nlohmann::json& claim_template) override;
  Result<bool> HasGroups() override;
  Status EnsureGroup(const std::string& name_space, const nlohmann::json& group) override;

 private:
  Result<std::vector<uint64_t>> ReadSizes(GpusOf where);
  Status Ensure(const std::string& path, const nlohmann::json& object);

  KubeClient& client_;
  std::atomic<bool> has_driver_ = false;

  struct Sizes {
    std::vector<uint64_t> bytes = {};  // as they were at `read`
    std::optional<std::chrono::steady_clock::time_point> read = {};
  };
  std::mutex mutex_;
  Sizes sizes_[2];  // by GpusOf
};

}  // namespace prorata::kubernetes
