#pragma once

// Which shares to move so that less of the cluster is useless.
//
// A share that is moved is stopped and restarted, or checkpointed: moves are asked for, never made
// by themselves. Each move is the one that gains most at that point: what the share's place costs
// now, in the score it would have if it came there today, less the score of the best other node.

#include <cstdint>
#include <vector>

#include "policy/placement/cluster.h"
#include "policy/placement/placer.h"

namespace prorata::policy::placement {

struct Move {
  ShareId share;
  Place from;
  Place to;
  int64_t gain_gpu_milli;  // what becomes useful by it
};

// Keeps what each share's place costs, and brings up to date what changed. Memory: 24 bytes a
// share. Not thread-safe.
class Defragmenter {
 public:
  // Both must outlive this.
  Defragmenter(Cluster* cluster, Placer* placer) : cluster_(cluster), placer_(placer) {}

  // At most `max_moves` moves in the order in which they are to be made, each of which gains at
  // least `min_gain_gpu_milli`. The cluster is afterwards as it was. Shares with labels, remote
  // ones and those that were added as not movable stay. Costs a look at every share for each move.
  std::vector<Move> Plan(size_t max_moves, int64_t min_gain_gpu_milli);

 private:
  struct Resident {
    ShareId share;
    uint32_t kind;  // of kinds_
    int64_t keep;   // the score of its place, were it to come there now
  };
  struct Node {
    uint64_t change = ~uint64_t{0};
    std::vector<Resident> residents;
  };
  struct Kind {
    Request request;
    NodeIndex best = 0;  // of all nodes
    int64_t best_score = 0;
    int64_t other_score = 0;  // of all but the best
  };

  void Refresh(NodeIndex node);
  void RefreshKinds();
  uint32_t KindOf(const Request& request);
  std::optional<Move> BestMove(int64_t min_gain_gpu_milli);

  Cluster* cluster_;
  Placer* placer_;
  std::vector<Node> nodes_;
  std::vector<Kind> kinds_;
};

}  // namespace prorata::policy::placement
