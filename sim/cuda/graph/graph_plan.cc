#include "sim/cuda/graph/graph_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace prorata::simgpu::driver {
namespace {

struct Flat {
  const GraphNode* node = nullptr;
  std::vector<size_t> after;  // earlier entries
};

// Nodes in an order that respects the edges, of those possible the order of creation; a child graph
// in place of its node, begun by all that its node depends on and ended by all of its leaves.
class Flattener {
 public:
  explicit Flattener(std::vector<Flat>* out) : out_(out) {}

  // `tails` gets what must be done for the graph to be done: the nodes that nothing depends on.
  bool Flatten(const Graph& graph, const std::vector<size_t>& before, std::vector<size_t>* tails) {
    std::map<const GraphNode*, size_t> waiting;
    std::map<const GraphNode*, std::vector<const GraphNode*>> dependents;
    auto earlier = [](const GraphNode* a, const GraphNode* b) { return a->order < b->order; };
    std::set<const GraphNode*, decltype(earlier)> ready(earlier);
    for (const auto& node : graph.nodes) {
      waiting[node.get()] = node->dependencies.size();
      for (GraphNode* dependency : node->dependencies) dependents[dependency].push_back(node.get());
      if (node->dependencies.empty()) ready.insert(node.get());
    }
    std::map<const GraphNode*, std::vector<size_t>> done;
    while (!ready.empty()) {
      const GraphNode* node = *ready.begin();
      ready.erase(ready.begin());
      std::vector<size_t> after = node->dependencies.empty() ? before : std::vector<size_t>();
      for (const GraphNode* dependency : node->dependencies) {
        after.insert(after.end(), done[dependency].begin(), done[dependency].end());
      }
      if (!Add(*node, std::move(after), &done[node])) return false;
      if (dependents[node].empty()) {
        tails->insert(tails->end(), done[node].begin(), done[node].end());
      }
      for (const GraphNode* dependent : dependents[node]) {
        if (--waiting[dependent] == 0) ready.insert(dependent);
      }
    }
    return done.size() == graph.nodes.size();
  }

 private:
  bool Add(const GraphNode& node, std::vector<size_t> after, std::vector<size_t>* ends) {
    if (!node.child) {
      *ends = {Append(&node, std::move(after))};
      return true;
    }
    // One step before and one behind a child graph with several ends keep the edges few.
    if (after.size() > 1) after = {Append(nullptr, std::move(after))};
    std::vector<size_t> tails;
    if (!Flatten(*node.child, after, &tails)) return false;
    if (tails.size() != 1) tails = {Append(nullptr, tails.empty() ? after : std::move(tails))};
    *ends = std::move(tails);
    return true;
  }

  size_t Append(const GraphNode* node, std::vector<size_t> after) {
    out_->push_back({node, std::move(after)});
    return out_->size() - 1;
  }

  std::vector<Flat>* out_;
};

// Gives each step a lane: behind something that it depends on, as far as possible.
//
// `seen[s][l]` is how many steps of lane l are done when step s is (a vector clock). So
//   A. step s may follow in lane l without waiting for anything it need not wait for, if what s
//      depends on has seen all of lane l;
//   B. s must wait for lane l only if it depends on more of l than its own lane has seen.
class LanePicker {
 public:
  LanePicker(const PlanLane& launch, bool node_priority, GraphPlan* plan)
      : node_priority_(node_priority), plan_(plan) {
    plan_->lanes = {launch};
    counts_ = {0};
    last_ = {std::nullopt};
  }

  void Place(const Flat& flat) {
    std::vector<size_t> needed(counts_.size());
    for (size_t dependency : flat.after) {
      const auto& seen = seen_[dependency];
      for (size_t l = 0; l < seen.size(); ++l) needed[l] = std::max(needed[l], seen[l]);
    }
    const size_t lane = Choose(flat, needed);
    needed.resize(counts_.size());
    std::vector<size_t> seen(counts_.size());
    if (last_[lane]) {
      const auto& own = seen_[*last_[lane]];
      std::copy(own.begin(), own.end(), seen.begin());
    }
    PlanStep step{flat.node, lane, {}};
    for (size_t l = 0; l < needed.size(); ++l) {
      if (needed[l] <= seen[l] || l == lane) continue;
      step.waits.push_back({l, needed[l]});
      seen[l] = needed[l];
    }
    seen[lane] = ++counts_[lane];
    last_[lane] = seen_.size();
    seen_.push_back(std::move(seen));
    plan_->steps.push_back(std::move(step));
  }

  void Finish() {
    std::vector<size_t> seen(counts_.size());
    if (last_[0]) {
      const auto& own = seen_[*last_[0]];
      std::copy(own.begin(), own.end(), seen.begin());
    }
    for (size_t l = 1; l < counts_.size(); ++l) {
      if (counts_[l] > seen[l]) plan_->ends.push_back({l, counts_[l]});
    }
  }

 private:
  // Where the step must run, as far as it matters.
  bool Suits(const PlanLane& lane, const GraphNode* node) const {
    if (!node) return true;
    Context* ctx = node->ctx;
    // An event is recorded in a stream of its own context.
    if (const auto* record = std::get_if<RecordCall>(&node->operation)) ctx = record->event->ctx;
    if (ctx && ctx != lane.ctx) return false;
    return node->type != CU_GRAPH_NODE_TYPE_KERNEL || lane.priority == PriorityOf(*node);
  }

  int PriorityOf(const GraphNode& node) const {
    const int launch = plan_->lanes[0].priority;
    if (!node_priority_) return launch;
    auto set = node.attributes.find(CU_LAUNCH_ATTRIBUTE_PRIORITY);
    return set == node.attributes.end() ? launch : set->second.priority;
  }

  size_t Choose(const Flat& flat, const std::vector<size_t>& needed) {
    if (Broken(Rule::kGraphBranchesOverlap)) return 0;
    const GraphNode* node = flat.node;
    size_t best = SIZE_MAX;
    for (size_t l = 0; l < counts_.size(); ++l) {
      if (!Suits(plan_->lanes[l], node) || needed[l] != counts_[l]) continue;
      // Rather behind a step it depends on than into a lane that is empty so far.
      if (best == SIZE_MAX || counts_[l] > counts_[best]) best = l;
    }
    if (best != SIZE_MAX) return best;
    if (counts_.size() <= kMaxLanes) return NewLane(node);
    for (size_t l = 0; l < counts_.size(); ++l) {
      if (!Suits(plan_->lanes[l], node)) continue;
      if (best == SIZE_MAX || counts_[l] < counts_[best]) best = l;
    }
    return best != SIZE_MAX ? best : NewLane(node);
  }

  size_t NewLane(const GraphNode* node) {
    PlanLane lane = plan_->lanes[0];
    if (node) {
      if (node->ctx) lane.ctx = node->ctx;
      if (const auto* record = std::get_if<RecordCall>(&node->operation)) {
        lane.ctx = record->event->ctx;
      }
      if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) lane.priority = PriorityOf(*node);
    }
    plan_->lanes.push_back(lane);
    counts_.push_back(0);
    last_.push_back(std::nullopt);
    return plan_->lanes.size() - 1;
  }

  bool node_priority_;
  GraphPlan* plan_;
  std::vector<size_t> counts_;               // steps in each lane
  std::vector<std::optional<size_t>> last_;  // the last step of each lane
  std::vector<std::vector<size_t>> seen_;    // of each step
};

}  // namespace

bool MakePlan(const Graph& graph, const PlanLane& launch, bool node_priority, GraphPlan* plan) {
  std::vector<Flat> flat;
  std::vector<size_t> tails;
  if (!Flattener(&flat).Flatten(graph, {}, &tails)) return false;
  *plan = {};
  LanePicker picker(launch, node_priority, plan);
  for (const Flat& entry : flat) picker.Place(entry);
  picker.Finish();
  return true;
}

}  // namespace prorata::simgpu::driver
