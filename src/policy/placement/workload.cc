#include "policy/placement/workload.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <tuple>

// The loops of NodeView are most of what a decision costs, and short: GCC makes vectors of them
// only when told to.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

namespace prorata::policy::placement {
namespace {

using KindKey = std::tuple<int32_t, int32_t, int32_t, ModelMask>;  // CPU, milli, count, models

KindKey KeyOf(const Request& request) {
  return {request.cpu_milli, request.gpu_milli, request.gpu_count,
          request.gpu_count == 0 ? kAnyModel : request.models};
}

int GpusRow(int32_t gpu_count) { return std::bit_width(static_cast<uint32_t>(gpu_count - 1)); }

}  // namespace

Workload::Workload(std::span<const WorkloadEntry> entries, double cover) {
  std::map<KindKey, double> by_kind;
  double total = 0, gpu_total = 0, gpu_cpu_milli = 0, gpu_milli = 0;
  std::array<double, 5> by_gpus = {};
  for (const WorkloadEntry& entry : entries) {
    by_kind[KeyOf(entry.request)] += entry.frequency;
    total += entry.frequency;
    if (entry.request.gpu_count == 0) continue;
    gpu_total += entry.frequency;
    by_gpus[GpusRow(entry.request.gpu_count)] += entry.frequency;
    gpu_cpu_milli += entry.frequency * entry.request.cpu_milli;
    gpu_milli += entry.frequency * entry.request.TotalGpuMilli();
  }
  if (gpu_cpu_milli > 0) {
    gpu_per_cpu_ = std::llround(static_cast<double>(kWeightOne) * gpu_milli / gpu_cpu_milli);
  }
  for (size_t i = 0; i < by_gpus.size() && gpu_total > 0; ++i) {
    weight_of_gpus_[i] = std::llround(static_cast<double>(kWeightOne) * by_gpus[i] / gpu_total);
  }

  std::vector<std::pair<double, KindKey>> order;
  for (const auto& [key, frequency] : by_kind) order.emplace_back(frequency, key);
  std::sort(order.begin(), order.end(), std::greater<>());
  double kept = 0;
  size_t count = 0;
  std::map<std::tuple<int32_t, int32_t, ModelMask>, size_t> demand_of;
  for (; count < order.size() && kept < cover * total; ++count) {
    const auto& [cpu, milli, gpus, models] = order[count].second;
    if (gpus > 0 && !demand_of.contains({milli, gpus, models})) {
      if (demands_.size() == NodeView::kMaxDemands) break;  // the rarest are left out
      demand_of[{milli, gpus, models}] = demands_.size();
      demands_.push_back({milli, gpus, models});
      wanted_milli_.push_back(static_cast<int16_t>(milli));
      wanted_count_.push_back(static_cast<int8_t>(gpus));
    }
    cpu_levels_.push_back(cpu);
    kept += order[count].first;
  }
  std::sort(cpu_levels_.begin(), cpu_levels_.end());
  cpu_levels_.erase(std::unique(cpu_levels_.begin(), cpu_levels_.end()), cpu_levels_.end());
  for (size_t i = 0; i < count; ++i) {
    const auto& [cpu, milli, gpus, models] = order[i].second;
    const double weight = static_cast<double>(kWeightOne) * order[i].first / kept;
    kinds_.push_back({cpu, milli, gpus, models, std::llround(weight)});
  }

  // Models that no kind tells apart share a row.
  model_row_.resize(kMaxModels);
  std::map<std::vector<bool>, uint16_t> rows;
  const size_t row_size = (cpu_levels_.size() + 1) * demands_.size();
  for (int model = 0; model < kMaxModels; ++model) {
    std::vector<bool> allowed;
    for (const Demand& demand : demands_) allowed.push_back(demand.models >> model & 1);
    const auto [at, added] = rows.try_emplace(allowed, static_cast<uint16_t>(rows.size()));
    model_row_[model] = at->second;
    if (!added) continue;
    weights_.resize(weights_.size() + row_size);
    int32_t* row = weights_.data() + weights_.size() - row_size;
    for (const Kind& kind : kinds_) {
      if (kind.gpu_count == 0 || (kind.models >> model & 1) == 0) continue;
      const size_t demand = demand_of[{kind.gpu_milli, kind.gpu_count, kind.models}];
      for (size_t level = 0; level < cpu_levels_.size(); ++level) {
        if (cpu_levels_[level] < kind.cpu_milli) continue;
        row[(level + 1) * demands_.size() + demand] += static_cast<int32_t>(kind.weight);
      }
    }
  }
}

std::span<const int32_t> Workload::WeightsFor(int32_t cpu_left_milli, uint8_t model) const {
  const size_t level =
      static_cast<size_t>(std::upper_bound(cpu_levels_.begin(), cpu_levels_.end(), cpu_left_milli) -
                          cpu_levels_.begin());
  const size_t row = model_row_[model] * (cpu_levels_.size() + 1) + level;
  return {weights_.data() + row * demands_.size(), demands_.size()};
}

int64_t Workload::Fragmentation(const NodeState& node) const {
  return NodeView(*this, node).fragmentation();
}

int64_t Workload::Stranded(int32_t cpu_left_milli, int32_t gpu_left_milli) const {
  if (gpu_per_cpu_ == 0) return 0;
  const int64_t served = cpu_left_milli * gpu_per_cpu_;
  return std::max<int64_t>(0, (int64_t{gpu_left_milli} << kWeightBits) - served);
}

NodeView::NodeView(const Workload& workload, const NodeState& node)
    : workload_(&workload), node_(&node) {
  const size_t demands = workload.demands_.size();
  std::fill_n(below_.begin(), demands, Below{0});
  std::fill_n(at_least_.begin(), demands, AtLeast{0});
  for (int i = 0; i < node.gpu_count; ++i) {
    const int32_t level = node.gpu_left_milli[i];
    gpu_left_milli_ += level;
    for (size_t d = 0; d < demands; ++d) {
      const bool fits = level >= workload.wanted_milli_[d];
      at_least_[d] = static_cast<AtLeast>(at_least_[d] + fits);
      below_[d] = static_cast<Below>(below_[d] + (fits ? 0 : level));
    }
  }
  fragmentation_ = Sum(workload.WeightsFor(node.cpu_left_milli, node.model), below_.data(),
                       at_least_.data(), gpu_left_milli_);
}

int64_t NodeView::Sum(std::span<const int32_t> weights, const Below* below, const AtLeast* at_least,
                      int32_t gpu_left) const {
  if (weights.empty()) return 0;
  const int8_t* const wanted_count = workload_->wanted_count_.data();
  // At most 16,000 times kWeightOne, and what rounding adds: below 2^31.
  int32_t can = 0, wasted = 0;
  for (size_t d = 0; d < weights.size(); ++d) {
    const int32_t weight = at_least[d] >= wanted_count[d] ? weights[d] : 0;
    can += weight;
    wasted += weight * below[d];
  }
  return wasted + (kWeightOne - can) * gpu_left;
}

// Moves a GPU from `level` to `level - milli` in the two tables.
void NodeView::Take(int32_t level, int32_t milli, Below* below, AtLeast* at_least) const {
  const int32_t rest = level - milli;
  const int16_t* const wanted_milli = workload_->wanted_milli_.data();
  for (size_t d = 0; d < workload_->wanted_milli_.size(); ++d) {
    const int32_t wanted = wanted_milli[d];
    const bool fitted = level >= wanted, fits = rest >= wanted;
    at_least[d] = static_cast<AtLeast>(at_least[d] - (fitted - fits));
    below[d] = static_cast<Below>(below[d] + (fits ? 0 : rest) - (fitted ? 0 : level));
  }
}

int64_t NodeView::AfterAll(int32_t cpu_left_milli, GpuMask gpus, int32_t milli) const {
  const auto weights = workload_->WeightsFor(cpu_left_milli, node_->model);
  if (gpus == 0) return Sum(weights, below_.data(), at_least_.data(), gpu_left_milli_);
  std::array<Below, kMaxDemands> below;
  std::array<AtLeast, kMaxDemands> at_least;
  std::copy_n(below_.begin(), weights.size(), below.begin());
  std::copy_n(at_least_.begin(), weights.size(), at_least.begin());
  for (uint32_t rest = gpus; rest != 0; rest &= rest - 1) {
    Take(node_->gpu_left_milli[std::countr_zero(rest)], milli, below.data(), at_least.data());
  }
  return Sum(weights, below.data(), at_least.data(), gpu_left_milli_ - milli * std::popcount(gpus));
}

Workload ExpectedWorkload() {
  std::vector<WorkloadEntry> entries;
  for (const int32_t milli : {100, 200, 250, 300, 500}) {
    entries.push_back({{.gpu_count = 1, .gpu_milli = milli}, 1.0});
  }
  double frequency = 2.0;
  for (const int32_t count : {1, 2, 4, 8}) {
    entries.push_back({{.gpu_count = count, .gpu_milli = kGpuMilli}, frequency});
    frequency /= 2;
  }
  return Workload(entries);
}

}  // namespace prorata::policy::placement
