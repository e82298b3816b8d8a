#pragma once

// One run of a workload on a cluster under a policy, in virtual time, the same for the same seed.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/cluster/policies.h"
#include "sim/cluster/trace.h"

namespace prorata::sim::cluster {

enum class Arrivals {
  kSampled,  // the pods in an order that is drawn, then pods drawn from them, up to `load`; none
             // departs, and one that does not fit is dropped
  kTrace,    // the same, once, in the order of the file
  kTimes,    // each at its own time; it departs when it has run; one that does not fit waits
};

struct RunOptions {
  PolicyKind policy = PolicyKind::kProrata;
  Ties ties = Ties::kShuffled;
  uint64_t seed = 42;
  Arrivals arrivals = Arrivals::kSampled;
  double load = 1.3;  // GPU asked for, of what there is
  // Of prorata.
  size_t look_ahead = 1;    // shares that are placed together
  uint32_t move_every = 0;  // one move is allowed for so many placements; 0: none
  int64_t min_gain_milli = 10;
  bool note_gpus = false;
};

// The state after some arrivals.
struct Point {
  double load_percent = 0;           // GPU asked for so far, of what there is
  double unallocated_percent = 0;    // of all GPUs
  double fragmentation_percent = 0;  // of what is unallocated: what the next share cannot use
  int64_t waiting = 0;               // or dropped
};

// What the shares on a GPU ask for.
struct GpuUse {
  std::string node;
  int gpu = 0;
  int32_t gpu_milli = 0;
  int32_t memory_mib = 0;
};

struct RunResult {
  std::vector<Point> points;  // one for each percent of load
  std::vector<GpuUse> gpus;   // at the end, where RunOptions::note_gpus
  int64_t placed = 0;
  int64_t dropped = 0;
  int64_t moves = 0;
  int64_t moved_gain_milli = 0;
  // With departures.
  double wasted_gpu_hours = 0;  // fragmentation over time
  int64_t waited = 0;
  double mean_wait_s = 0;  // of all pods
  double longest_wait_s = 0;

  // At a whole percent of load that the run reached.
  const Point& At(int load_percent) const;
};

// `progress` is called now and then with the part that is done, of 1.
RunResult RunPolicy(const Nodes& nodes, const Pods& pods, const RunOptions& options,
                    const std::function<void(double)>& progress = {});

// The workload that the pods are drawn from.
policy::placement::Workload WorkloadOf(const Pods& pods);
// GB/s of each pair of 8 GPUs: dgx1 or pcie2x4.
std::vector<int32_t> LinksOf(const std::string& links);
// Adds the nodes, links included.
void AddNodes(const Nodes& nodes, policy::placement::Cluster* cluster);

// What no policy can avoid: shares of one size leave a rest of their GPUs that nothing else asks
// for. Percent of the GPU that is asked for, for the size for which it is most; a lower bound as
// long as shares of that size are not turned away.
struct Floor {
  int32_t gpu_milli = 0;      // the size
  int64_t shares = 0;         // of that size
  double left_percent = 0;    // what they leave
  double usable_percent = 0;  // the most that smaller shares can use of it
  double percent() const { return left_percent - usable_percent; }
};
Floor FloorOf(const Pods& pods);

}  // namespace prorata::sim::cluster
