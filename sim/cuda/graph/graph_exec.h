#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "sim/cuda/graph/graph.h"
#include "sim/cuda/graph/graph_plan.h"

namespace prorata::simgpu::driver {

// An instantiated graph: a copy of the program's, and the streams that its branches run on.
//
// What is on the streams is the executable graph's own, so that branches wait for nothing but what
// their edges say: it has lanes of its own, and launches of one executable graph follow each other.
//
// Lock order: `launching`, then Stream::order, then Driver::mutex. Held by a launch from beginning
// to end, also while it waits for room in a queue.
struct GraphExec {
  // Under Driver::mutex.
  std::shared_ptr<Graph> graph;
  std::shared_ptr<Graph> original;          // holds the memory of allocation nodes
  std::map<CUgraphNode, GraphNode*> nodes;  // of `graph`, by the node of the program's graph
  Context* ctx = nullptr;
  cuuint64_t flags = 0;
  bool planned = false;  // `plan` is of `graph`

  // Under `launching`.
  std::mutex launching;
  GraphPlan plan;
  const Green* green = nullptr;  // whose SMs the lanes are confined to
  struct Lane {
    StreamRef stream;
    Handle machine_ctx = 0;  // it is gone when its context has another handle
    uint64_t submitted = 0;
  };
  std::vector<Lane> lanes;  // those of the plan but the first
  // Where the last launch ends.
  Handle last_stream = 0;
  uint64_t last_sequence = 0;

  GraphExec() = default;
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;
  // What was launched still runs.
  ~GraphExec();
};

// D().mutex held for all of these.
//
// Makes an executable copy of the graph. CUDA_ERROR_INVALID_VALUE for edges that form a circle.
CUresult Instantiate(const std::shared_ptr<Graph>& graph, Context* ctx, cuuint64_t flags,
                     CUgraphExec* out);
CUresult FindExec(CUgraphExec handle, std::shared_ptr<GraphExec>* out);
// The node of the executable graph that stands for a node of the original.
CUresult FindExecNode(GraphExec* exec, CUgraphNode node, GraphNode** out);

}  // namespace prorata::simgpu::driver
