#pragma once

// Events on pods, as `kubectl describe pod` shows them. Thread-safe.

#include <string>

#include "base/result.h"
#include "kubernetes/api/kube_client.h"

namespace prorata::kubernetes {

struct PodReference {
  std::string name_space;
  std::string name;
  std::string uid;
};

class PodEvents {
 public:
  virtual ~PodEvents() = default;
  // `warning`: of the type Warning, else Normal. One that was recorded before counts once more.
  // Errors: KubeClient's.
  virtual Status Record(const PodReference& pod, bool warning, const std::string& reason,
                        const std::string& message) = 0;
};

class KubePodEvents final : public PodEvents {
 public:
  // `component`: who says it; `node`: where.
  KubePodEvents(KubeClient& client, std::string component, std::string node)
      : client_(client), component_(std::move(component)), node_(std::move(node)) {}

  Status Record(const PodReference& pod, bool warning, const std::string& reason,
                const std::string& message) override;

 private:
  KubeClient& client_;
  const std::string component_;
  const std::string node_;
};

}  // namespace prorata::kubernetes
