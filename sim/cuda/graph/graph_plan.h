#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "sim/cuda/graph/graph.h"

// How a graph is put on streams, so that what it orders is ordered and what it does not can
// overlap.

namespace prorata::simgpu::driver {

// "So many steps of that lane": what a step waits for. Lane, count.
using PlanPoint = std::pair<size_t, size_t>;

struct PlanStep {
  const GraphNode* node = nullptr;  // null: does nothing but order others
  size_t lane = 0;
  std::vector<PlanPoint> waits;  // beyond the steps before it in its lane
};

// A stream's worth of steps, first in first out.
struct PlanLane {
  Context* ctx = nullptr;
  int priority = 0;
};

struct GraphPlan {
  std::vector<PlanStep> steps;  // in an order that respects the edges
  std::vector<PlanLane> lanes;  // the first is the launching stream
  std::vector<PlanPoint> ends;  // of the other lanes: what the launching stream waits for at last
};

// At most so many lanes besides the launching stream: an H100 runs 128 kernels at once, and wide
// graphs of small nodes gain nothing from more.
inline constexpr size_t kMaxLanes = 32;

// For a launch into a stream of `launch`. With `node_priority` kernels run at the priority of their
// node instead of the stream's (CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY). False when the
// edges form a circle. Child graphs are laid out in place of their node.
bool MakePlan(const Graph& graph, const PlanLane& launch, bool node_priority, GraphPlan* plan);

}  // namespace prorata::simgpu::driver
