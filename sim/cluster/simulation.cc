#include "sim/cluster/simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <queue>

#include "policy/placement/batch.h"
#include "policy/placement/defragment.h"

namespace prorata::sim::cluster {
namespace {

namespace placement = policy::placement;

constexpr double kSecondsPerHour = 3600;
constexpr int kProgressEvery = 256;

class Simulation {
 public:
  Simulation(const Nodes& nodes, const Pods& pods, const RunOptions& options,
             const std::function<void(double)>& progress)
      : pods_(pods),
        options_(options),
        progress_(progress),
        random_(options.seed),
        workload_(WorkloadOf(pods)),
        cluster_(ExpectsWorkload(options.policy) ? expected_ : workload_),
        nodes_(nodes),
        capacity_milli_(nodes.GpuMilli()) {
    AddNodes(nodes, &cluster_);
    policy_ = MakePolicy(options.policy, options.ties, &cluster_, pods.kinds, &random_);
    if (options.move_every > 0 && policy_->placer() != nullptr) {
      defragmenter_ = std::make_unique<placement::Defragmenter>(&cluster_, policy_->placer());
    }
    fragmentation_.resize(cluster_.size());
  }

  RunResult Run() {
    if (options_.arrivals == Arrivals::kTimes) {
      RunTimes();
    } else {
      RunOnce();
    }
    if (options_.note_gpus) NoteGpus();
    return std::move(result_);
  }

 private:
  std::vector<size_t> Sequence() {
    std::vector<size_t> order(pods_.pods.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (options_.arrivals == Arrivals::kTrace) return order;
    Shuffle(&random_, &order);
    int64_t milli = 0;
    for (const Pod& pod : pods_.pods) milli += pod.request.TotalGpuMilli();
    if (milli == 0) return order;
    const double most = options_.load * static_cast<double>(capacity_milli_);
    while (static_cast<double>(milli) < most) {
      order.push_back(Draw(&random_, pods_.pods.size()));
      milli += pods_.pods[order.back()].request.TotalGpuMilli();
    }
    return order;
  }

  void NoteGpus() {
    for (size_t i = 0; i < nodes_.nodes.size(); ++i) {
      const placement::NodeState& left = cluster_.node(static_cast<placement::NodeIndex>(i));
      const int32_t known = nodes_.nodes[i].spec.gpu_memory_mib;
      const int32_t memory_mib = known > 0 ? known : std::numeric_limits<int32_t>::max();
      for (int gpu = 0; gpu < left.gpu_count; ++gpu) {
        result_.gpus.push_back({nodes_.nodes[i].name, gpu,
                                placement::kGpuMilli - left.gpu_left_milli[gpu],
                                memory_mib - left.gpu_memory_left_mib[gpu]});
      }
    }
  }

  // Without departures.
  void RunOnce() {
    const std::vector<size_t> sequence = Sequence();
    const size_t together = policy_->placer() == nullptr ? 1 : options_.look_ahead;
    std::vector<placement::Waiting> batch;
    for (size_t i = 0; i < sequence.size(); ++i) {
      const Pod& pod = pods_.pods[sequence[i]];
      arrived_milli_ += pod.request.TotalGpuMilli();
      const bool at_point = LoadPercent() >= next_point_;
      if (together > 1) {
        batch.push_back({pod.request, {}});
        if (batch.size() == together || at_point || i + 1 == sequence.size()) PlaceAll(&batch);
      } else if (!PlaceOne(pod)) {
        ++result_.dropped;
      }
      MoveSome();
      if (at_point) AddPoint(result_.dropped);
      if (progress_ && i % kProgressEvery == 0) {
        progress_(static_cast<double>(i) / static_cast<double>(sequence.size()));
      }
    }
    if (result_.points.empty() || next_point_ == 0) AddPoint(result_.dropped);
  }

  void PlaceAll(std::vector<placement::Waiting>* batch) {
    const auto shares = placement::PlaceBatch(*batch, &cluster_, policy_->placer());
    for (size_t i = 0; i < shares.size(); ++i) {
      if (!shares[i]) {
        ++result_.dropped;
        continue;
      }
      ++result_.placed;
      allocated_milli_ += (*batch)[i].request.TotalGpuMilli();
    }
    batch->clear();
  }

  std::optional<placement::ShareId> PlaceOne(const Pod& pod) {
    const auto place = policy_->Choose(pod.kind, pod.request);
    if (!place) return std::nullopt;
    const auto share = cluster_.Add(pod.request, {}, *place);
    if (!share) return std::nullopt;
    ++result_.placed;
    allocated_milli_ += pod.request.TotalGpuMilli();
    return share;
  }

  void MoveSome() {
    if (!defragmenter_ || result_.placed < next_move_at_) return;
    next_move_at_ = result_.placed + options_.move_every;
    for (const auto& move : defragmenter_->Plan(1, options_.min_gain_milli)) {
      cluster_.Move(move.share, move.to);
      ++result_.moves;
      result_.moved_gain_milli += move.gain_gpu_milli;
    }
  }

  // With departures.
  void RunTimes() {
    std::vector<size_t> order(pods_.pods.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      const int64_t at_a = pods_.pods[a].arrival_s, at_b = pods_.pods[b].arrival_s;
      return at_a != at_b ? at_a < at_b : a < b;
    });
    int64_t horizon_s = 0;
    for (const Pod& pod : pods_.pods) horizon_s = std::max(horizon_s, pod.arrival_s + pod.run_s);
    for (size_t i = 0; i < order.size();) {
      const int64_t now_s = pods_.pods[order[i]].arrival_s;
      DepartUntil(now_s, horizon_s);
      for (; i < order.size() && pods_.pods[order[i]].arrival_s == now_s; ++i) {
        arrived_milli_ += pods_.pods[order[i]].request.TotalGpuMilli();
        Start(order[i], now_s);
        if (LoadPercent() >= next_point_) AddPoint(static_cast<int64_t>(waiting_.size()));
        if (progress_ && i % kProgressEvery == 0) {
          progress_(static_cast<double>(i) / static_cast<double>(order.size()));
        }
      }
    }
    DepartUntil(std::numeric_limits<int64_t>::max(), horizon_s);
    AddPoint(static_cast<int64_t>(waiting_.size()));
    result_.dropped = static_cast<int64_t>(waiting_.size());  // these fit an empty cluster neither
    result_.mean_wait_s = wait_s_ / static_cast<double>(pods_.pods.size());
  }

  bool Start(size_t pod_index, int64_t now_s) {
    const Pod& pod = pods_.pods[pod_index];
    const auto share = PlaceOne(pod);
    if (share) {
      departures_.push({now_s + pod.run_s, *share});
      const auto waited_s = static_cast<double>(now_s - pod.arrival_s);
      wait_s_ += waited_s;
      result_.waited += waited_s > 0;
      result_.longest_wait_s = std::max(result_.longest_wait_s, waited_s);
      MoveSome();
    } else if (now_s == pod.arrival_s) {
      waiting_.push_back(pod_index);
    }
    return share.has_value();
  }

  void DepartUntil(int64_t until_s, int64_t horizon_s) {
    while (!departures_.empty() && departures_.top().at_s <= until_s) {
      const int64_t now_s = departures_.top().at_s;
      Integrate(now_s, horizon_s);
      for (; !departures_.empty() && departures_.top().at_s == now_s; departures_.pop()) {
        const placement::ShareId share = departures_.top().share;
        allocated_milli_ -= cluster_.share(share).request.TotalGpuMilli();
        cluster_.Remove(share);
      }
      Retry(now_s);
    }
    if (until_s != std::numeric_limits<int64_t>::max()) {
      Integrate(until_s, horizon_s);
    } else {
      Integrate(horizon_s, horizon_s);
    }
  }

  // In the order of arrival; one that still does not fit holds up none behind it.
  void Retry(int64_t now_s) {
    std::vector<bool> failed(pods_.kinds);
    std::erase_if(waiting_, [&](size_t index) {
      const uint32_t kind = pods_.pods[index].kind;
      if (failed[kind]) return false;
      failed[kind] = !Start(index, now_s);
      return !failed[kind];
    });
  }

  void Integrate(int64_t now_s, int64_t horizon_s) {
    now_s = std::min(now_s, horizon_s);
    if (now_s <= integrated_to_s_) return;
    result_.wasted_gpu_hours += FragmentedMilli() / placement::kGpuMilli *
                                static_cast<double>(now_s - integrated_to_s_) / kSecondsPerHour;
    integrated_to_s_ = now_s;
  }

  // Of the whole cluster; brings up to date the nodes that changed.
  double FragmentedMilli() {
    for (; seen_ < cluster_.log_end(); ++seen_) {
      // The log is read more often than it drops entries.
      const placement::NodeIndex node = cluster_.log_entry(std::max(seen_, cluster_.log_begin()));
      if (cluster_.last_change(node) != seen_) continue;
      const int64_t now = workload_.Fragmentation(cluster_.node(node));
      total_fragmentation_ += now - fragmentation_[node];
      fragmentation_[node] = now;
    }
    return static_cast<double>(total_fragmentation_) / static_cast<double>(placement::kWeightOne);
  }

  double LoadPercent() const {
    return 100 * static_cast<double>(arrived_milli_) / static_cast<double>(capacity_milli_);
  }

  void AddPoint(int64_t waiting) {
    const auto idle = static_cast<double>(capacity_milli_ - allocated_milli_);
    Point point;
    point.load_percent = LoadPercent();
    point.unallocated_percent = 100 * idle / static_cast<double>(capacity_milli_);
    point.fragmentation_percent = idle > 0 ? 100 * FragmentedMilli() / idle : 0;
    point.waiting = waiting;
    result_.points.push_back(point);
    next_point_ = std::floor(point.load_percent) + 1;
  }

  struct Departure {
    int64_t at_s;
    placement::ShareId share;
    bool operator>(const Departure& other) const {
      return at_s != other.at_s ? at_s > other.at_s : share > other.share;
    }
  };

  const Pods& pods_;
  const RunOptions options_;
  const std::function<void(double)>& progress_;
  std::mt19937_64 random_;
  const placement::Workload workload_;
  const placement::Workload expected_ = placement::ExpectedWorkload();
  placement::Cluster cluster_;
  const Nodes& nodes_;
  const int64_t capacity_milli_;
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<placement::Defragmenter> defragmenter_;

  RunResult result_;
  int64_t arrived_milli_ = 0;
  int64_t allocated_milli_ = 0;
  double next_point_ = 1;
  int64_t next_move_at_ = 1;

  std::vector<int64_t> fragmentation_;  // of each node
  int64_t total_fragmentation_ = 0;
  uint64_t seen_ = 0;

  std::priority_queue<Departure, std::vector<Departure>, std::greater<>> departures_;
  std::vector<size_t> waiting_;
  double wait_s_ = 0;
  int64_t integrated_to_s_ = 0;
};

}  // namespace

const Point& RunResult::At(int load_percent) const {
  for (const Point& point : points) {
    if (point.load_percent >= load_percent) return point;
  }
  return points.back();
}

RunResult RunPolicy(const Nodes& nodes, const Pods& pods, const RunOptions& options,
                    const std::function<void(double)>& progress) {
  return Simulation(nodes, pods, options, progress).Run();
}

placement::Workload WorkloadOf(const Pods& pods) {
  std::vector<placement::WorkloadEntry> entries;
  for (const Pod& pod : pods.pods) entries.push_back({pod.request, 1});
  return placement::Workload(entries);
}

Floor FloorOf(const Pods& pods) {
  std::map<int32_t, int64_t> by_size;
  int64_t total = 0;
  for (const Pod& pod : pods.pods) {
    total += pod.request.TotalGpuMilli();
    if (pod.request.gpu_count > 0) by_size[pod.request.gpu_milli] += pod.request.gpu_count;
  }
  Floor best;
  for (const auto& [size, shares] : by_size) {
    if (2 * size <= placement::kGpuMilli) continue;  // two fit
    int64_t usable = 0;
    for (const auto& [other, count] : by_size) {
      if (other <= placement::kGpuMilli - size) usable += other * count;
    }
    const auto percent = [&](int64_t milli) {
      return 100 * static_cast<double>(milli) / static_cast<double>(total);
    };
    const int64_t left = shares * (placement::kGpuMilli - size);
    const Floor one{size, shares, percent(left), percent(std::min(usable, left))};
    if (one.percent() > best.percent()) best = one;
  }
  return best;
}

}  // namespace prorata::sim::cluster
