#pragma once

// A cluster's nodes, and the shares that are placed on them. It keeps the account and refuses what
// does not fit; it decides nothing (placer.h does).
//
// Changes are logged, so that whoever keeps figures per node brings up to date only those that
// changed since (score_table.h). Memory: 200 bytes a node, 100 a share.
//
// Not thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "policy/placement/resources.h"
#include "policy/placement/topology.h"
#include "policy/placement/workload.h"

namespace prorata::policy::placement {

using NodeIndex = uint32_t;
// Names a placed share. The id removed last is the next one given.
using ShareId = uint32_t;

// Where a share is. `host` gives the CPU and memory, `node` the GPUs; they differ for a share that
// reaches its GPU over the network.
struct Place {
  NodeIndex node = 0;
  NodeIndex host = 0;
  GpuMask gpus = 0;

  bool operator==(const Place&) const = default;
};

class Cluster {
 public:
  // `workload` must outlive this.
  explicit Cluster(const Workload& workload) : workload_(&workload) {}

  // Both return an index: of a shape, from 1 on, to name in NodeSpec; of a node, from 0 on.
  uint16_t AddShape(Shape shape);
  NodeIndex AddNode(const NodeSpec& spec);

  size_t size() const { return states_.size(); }
  const NodeState& node(NodeIndex index) const { return states_[index]; }
  const NodeSpec& spec(NodeIndex index) const { return specs_[index]; }
  // The shape of the node's GPUs; the node has at least one.
  const Shape& shape(NodeIndex index) const;
  const Workload& workload() const { return *workload_; }
  // The largest node seen: what best fit measures by.
  int32_t max_cpu_milli() const { return max_cpu_milli_; }
  int32_t max_gpu_count() const { return max_gpu_count_; }

  // Whether so much of the GPUs is in use that what will be left of nodes matters (score.h). It
  // turns at kCrowdedPercent of the GPUs, and back at kUncrowdedPercent; then all nodes count as
  // changed.
  bool crowded() const { return crowded_; }
  static constexpr int64_t kCrowdedPercent = 5;
  static constexpr int64_t kUncrowdedPercent = 3;

  // The GPUs of the node that these labels allow.
  GpuMask AllowedGpus(const Labels& labels, NodeIndex node) const;
  // Where shares with this affinity label are.
  std::optional<Place> AffinityPlace(uint32_t affinity) const;

  // Whether the request can be placed there, labels included.
  bool Fits(const Request& request, const Labels& labels, const Place& place) const;
  // Nothing, and no change, where it does not fit.
  std::optional<ShareId> Add(const Request& request, const Labels& labels, const Place& place,
                             bool movable = true);
  void Remove(ShareId share);
  // Grows or shrinks a share where it is: its number of GPUs stays. False, and no change, where
  // that does not fit.
  bool Resize(ShareId share, const Request& request);
  // Takes the share to another place, under the same id. False, and no change, where it does not
  // fit.
  bool Move(ShareId share, const Place& place);
  // The node takes nothing any more and its shares are removed; returns them.
  std::vector<ShareId> LoseNode(NodeIndex node);

  struct Share {
    Request request;
    Labels labels;
    Place place;
    bool movable = true;
    bool placed = false;
  };
  const Share& share(ShareId id) const { return shares_[id]; }
  std::span<const ShareId> SharesOn(NodeIndex node) const { return shares_on_[node]; }

  // The log of changed nodes. Entry i is change number i + log_begin(); old entries are dropped.
  uint64_t log_begin() const { return log_begin_; }
  uint64_t log_end() const { return log_begin_ + log_.size(); }
  NodeIndex log_entry(uint64_t number) const { return log_[number - log_begin_]; }
  // The number of the node's last change.
  uint64_t last_change(NodeIndex node) const { return last_change_[node]; }

 private:
  struct GpuLabels {
    std::vector<Labels> of_shares;
  };

  static uint64_t GpuKey(NodeIndex node, int gpu) { return uint64_t{node} * kMaxGpusPerNode + gpu; }
  void Apply(const Request& request, const Place& place, int sign);
  void AddLabels(const Labels& labels, const Place& place);
  void RemoveLabels(const Labels& labels, const Place& place);
  void UpdateOccupied(NodeIndex node);
  void UpdateCrowded();
  void Log(NodeIndex node);

  const Workload* workload_;
  std::vector<Shape> shapes_;  // named in NodeSpec from 1 on
  std::vector<Shape> even_;    // by number of GPUs, from 1 on
  std::vector<NodeSpec> specs_;
  std::vector<NodeState> states_;
  std::vector<std::vector<ShareId>> shares_on_;  // by the node that gives the GPUs
  std::vector<Share> shares_;
  std::vector<uint32_t> slot_;  // of each share: where it is in shares_on_
  std::vector<ShareId> free_ids_;
  std::unordered_map<uint64_t, GpuLabels> labels_;  // of GPUs with labelled shares
  struct Affinity {
    Place place;
    uint32_t shares;
  };
  std::unordered_map<uint32_t, Affinity> affinity_;
  std::vector<NodeIndex> log_;
  uint64_t log_begin_ = 0;
  std::vector<uint64_t> last_change_;
  int32_t max_cpu_milli_ = 1;
  int32_t max_gpu_count_ = 1;
  int64_t gpu_milli_ = 0;  // of all nodes that are not lost
  int64_t used_gpu_milli_ = 0;
  bool crowded_ = false;
};

}  // namespace prorata::policy::placement
