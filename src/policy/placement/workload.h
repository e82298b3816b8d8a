#pragma once

// What is likely to be asked for next, and how much of a node's GPUs is of no use to it.
//
// Two measures of a node, both in milli-GPU times kWeightOne:
//
//   fragmentation   the part of its free GPUs that a share drawn from the workload cannot use, in
//                   expectation (FGD, USENIX ATC 2023): all of it where the share does not fit or
//                   has no GPU, else the GPUs that are too full for it.
//   stranded        the free GPUs beyond what the node's free CPU can serve, at the CPU that the
//                   workload asks for per GPU. Fragmentation looks at one share at a time, so it
//                   sees no difference between a node that has CPU for one more share and a node
//                   that has CPU for eight.
//
// Pure data once built: const member functions may be called from several threads.

#include <cstdint>
#include <span>
#include <vector>

#include "policy/placement/resources.h"

namespace prorata::policy::placement {

inline constexpr int kWeightBits = 16;
inline constexpr int64_t kWeightOne = int64_t{1} << kWeightBits;

// A kind of share, and how often it is asked for, in any unit.
struct WorkloadEntry {
  Request request;
  double frequency = 0;
};

class Workload {
 public:
  // Kinds that differ in host memory, GPU memory or min_bandwidth alone count as one. The most
  // frequent kinds that make up `cover` of all are kept. Empty entries make a workload that finds
  // nothing fragmented.
  explicit Workload(std::span<const WorkloadEntry> entries, double cover = kCover);
  Workload() : Workload(std::span<const WorkloadEntry>{}) {}

  // FGD's own.
  static constexpr double kCover = 0.95;

  int64_t Fragmentation(const NodeState& node) const;
  int64_t Stranded(int32_t cpu_left_milli, int32_t gpu_left_milli) const;

  // How often shares with so many GPUs are asked for, of kWeightOne, by the power of two that
  // holds the count: [0] 1, [1] 2, [2] 3 and 4, [3] 5 to 8, [4] 9 to 16.
  std::span<const int64_t, 5> weight_of_gpus() const { return weight_of_gpus_; }

  // How often each kind is asked for, of kWeightOne: those kept.
  struct Kind {
    int32_t cpu_milli;
    int32_t gpu_milli;
    int32_t gpu_count;
    ModelMask models;
    int64_t weight;
  };
  std::span<const Kind> kinds() const { return kinds_; }

 private:
  friend class NodeView;

  // All kinds with one demand of GPUs; they differ in CPU.
  struct Demand {
    int32_t gpu_milli;
    int32_t gpu_count;
    ModelMask models;
  };

  // The weight of the demand's kinds that so much CPU and this model can serve.
  std::span<const int32_t> WeightsFor(int32_t cpu_left_milli, uint8_t model) const;

  std::vector<Kind> kinds_;
  std::vector<Demand> demands_;
  std::vector<int16_t>
      wanted_milli_;  // of each demand, beside each other for the loops of NodeView
  std::vector<int8_t> wanted_count_;
  std::vector<int32_t> cpu_levels_;  // ascending
  // Of each group of models that no kind tells apart, of each CPU level and of each demand: the
  // weight.
  std::vector<int32_t> weights_;
  std::vector<uint16_t> model_row_;  // of each model: its group
  std::array<int64_t, 5> weight_of_gpus_ = {};
  int64_t gpu_per_cpu_ = 0;  // milli-GPU per milli-core, times kWeightOne; 0: no CPU is asked for
};

// For who does not know what will be asked for: parts of all sizes as often as whole GPUs, and of
// these fewer of many.
Workload ExpectedWorkload();

// One node's GPUs, prepared for the question that scoring asks many times: how fragmented would it
// be with a little less? Cheap to make, and valid while the workload lives.
class NodeView {
 public:
  static constexpr int kMaxDemands = 48;

  NodeView(const Workload& workload, const NodeState& node);

  int64_t fragmentation() const { return fragmentation_; }
  int32_t gpu_left_milli() const { return gpu_left_milli_; }

  // Fragmentation with so much CPU left, after `milli` was taken of each GPU of the mask.
  int64_t AfterAll(int32_t cpu_left_milli, GpuMask gpus, int32_t milli) const;

 private:
  // Small types: a view is kept of every node, and the scores of many nodes are cold in the cache.
  using Below = int16_t;   // at most 16 GPUs of 1000
  using AtLeast = int8_t;  // at most 16

  int64_t Sum(std::span<const int32_t> weights, const Below* below, const AtLeast* at_least,
              int32_t gpu_left) const;
  void Take(int32_t level, int32_t milli, Below* below, AtLeast* at_least) const;

  const Workload* workload_;
  const NodeState* node_;
  int64_t fragmentation_ = 0;
  int32_t gpu_left_milli_ = 0;
  // Of each demand: what is free on GPUs too full for it, and the number of the others.
  std::array<Below, kMaxDemands> below_;
  std::array<AtLeast, kMaxDemands> at_least_;
};

}  // namespace prorata::policy::placement
