#pragma once

// The score of every node for every class of request that was asked for, kept while nodes change.
//
// A class is one request, and whether its shares carry an exclusion label. Its scores are brought
// up to date when it is asked for, from the cluster's log: only nodes that changed since the class
// was last asked for are scored, each once. What scoring needs of a node (its NodeView) is made
// once per change and shared by all classes.
//
// Memory: 24 bytes for each class and node, 400 for each node. At most kMaxClasses classes are
// kept; the one that was not asked for the longest makes way.
//
// Not thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "policy/placement/cluster.h"
#include "policy/placement/score.h"
#include "policy/placement/tournament.h"

namespace prorata::policy::placement {

class ScoreTable {
 public:
  static constexpr size_t kMaxClasses = 512;

  // `cluster` must outlive this, and has all its nodes already. `tie_ranks`: of each node; of nodes
  // that score the same the lower rank wins. Empty: the order of the nodes.
  explicit ScoreTable(const Cluster& cluster, std::vector<uint32_t> tie_ranks = {});

  // The scores of a class, up to date until the cluster changes. An exclusion label makes the
  // scores a bound: GPUs that other labels may forbid count as allowed.
  const Tournament& Scores(const Request& request, bool exclusion_label);

  const Scorer& scorer() const { return scorer_; }
  std::span<const uint32_t> tie_ranks() const { return tie_ranks_; }

  // What was done so far: nodes scored for a class, and matches played. The cost of decisions, free
  // of the machine's.
  uint64_t steps() const;

 private:
  struct Key {
    Request request;
    bool exclusion_label;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct Class {
    explicit Class(std::span<const uint32_t> tie_ranks) : scores(tie_ranks) {}
    Tournament scores;
    uint64_t seen = 0;  // the number of the first change that is not in the scores
    uint64_t used = 0;  // when it was last asked for, by asked_
  };

  const NodeView& ViewOf(NodeIndex node);
  int64_t ScoreOf(const Key& key, NodeIndex node);
  void Update(const Key& key, Class* one);

  const Cluster* cluster_;
  Scorer scorer_;
  std::vector<uint32_t> tie_ranks_;
  struct View {
    uint64_t change = ~uint64_t{0};
    std::optional<NodeView> view;
  };
  std::vector<View> views_;
  std::unordered_map<Key, std::unique_ptr<Class>, KeyHash> classes_;
  uint64_t asked_ = 0;
  uint64_t scored_ = 0;
};

}  // namespace prorata::policy::placement
