#pragma once

// The policies that `prorata simulate` compares: prorata's own object, and others, written here
// from their publications and sources, for comparison only.
//
//   random           any node and GPU on which the share fits
//   dot-product      the node whose free CPU and GPU, as a vector, suits the request's least
//   packing          GPUs in use before nodes in use before empty nodes
//   clustering       nodes that run shares of the same size
//   best-fit         the node with the least free CPU and GPU
//   fgd              FGD (USENIX ATC 2023) as published: scores from 0 to 100
//   gpu-admission    GaiaGPU's: the node with the least free compute, then the fullest GPU
//   kubeshare        KubeShare's (HPDC 2020): the fullest GPU in use anywhere, else an idle one of
//                    the emptiest node
//   prorata          policy/placement/placer.h
//   extender         the same as the extender of a cluster's scheduler has it, which does not know
//                    the workload and expects one (placement::ExpectedWorkload)
//   dra              the extender's node, and there the fullest GPUs that fit: Kubernetes'
//   allocator
//                    takes the first device of a slice that fits, and prorata's driver lists the
//                    fullest first (src/kubernetes/dra/resource_slice.h)
//
// The first six as the FGD authors' simulator has them (hkust-adsl/kubernetes-scheduler-simulator).
// Equal scores are decided by Ties.

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "policy/placement/placer.h"

namespace prorata::sim::cluster {

enum class Ties {
  kShuffled,  // the nodes' order, drawn once a run: what the FGD authors' simulator does
  kName,      // the order of the file
  kReverse,   // the other way round
  kRandom,    // drawn each time: what kube-scheduler does
};

enum class PolicyKind {
  kRandom,
  kDotProduct,
  kPacking,
  kClustering,
  kBestFit,
  kFgd,
  kFgdRandomTies,
  kGpuAdmission,
  kKubeShare,
  kProrata,
  kExtender,
  kDra,
};

const std::vector<std::string>& PolicyNames();
std::optional<PolicyKind> PolicyOf(std::string_view name);
std::string_view NameOf(PolicyKind kind);
// Whether it is prorata's own.
bool IsProrata(PolicyKind kind);
// Whether it expects placement::ExpectedWorkload instead of knowing the workload.
bool ExpectsWorkload(PolicyKind kind);

class Policy {
 public:
  virtual ~Policy() = default;
  // Pods of one kind ask for the same.
  virtual std::optional<policy::placement::Place> Choose(
      uint32_t kind, const policy::placement::Request& request) = 0;
  // Of prorata: what plans batches and moves. Otherwise null.
  virtual policy::placement::Placer* placer() { return nullptr; }
};

// `cluster` and `random` must outlive the policy.
std::unique_ptr<Policy> MakePolicy(PolicyKind kind, Ties ties, policy::placement::Cluster* cluster,
                                   uint32_t kinds, std::mt19937_64* random);

// A number below `bound`, the same with every standard library.
uint64_t Draw(std::mt19937_64* random, uint64_t bound);
template <typename T>
void Shuffle(std::mt19937_64* random, std::vector<T>* values) {
  for (size_t i = values->size(); i > 1; --i) {
    std::swap((*values)[i - 1], (*values)[Draw(random, i)]);
  }
}

}  // namespace prorata::sim::cluster
