#include "policy/placement/batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace prorata::policy::placement {
namespace {

using Order = std::vector<size_t>;

struct Outcome {
  std::vector<std::optional<ShareId>> shares;
  int64_t gpu_milli = 0;
  size_t placed = 0;

  bool BetterThan(const Outcome& other) const {
    return gpu_milli != other.gpu_milli ? gpu_milli > other.gpu_milli : placed > other.placed;
  }
};

Outcome TryOrder(std::span<const Waiting> batch, const Order& order, Cluster* cluster,
                 Placer* placer) {
  Outcome outcome;
  outcome.shares.resize(batch.size());
  for (const size_t i : order) {
    const auto choice = placer->Choose(batch[i].request, batch[i].labels);
    if (!choice) continue;
    outcome.shares[i] = cluster->Add(batch[i].request, batch[i].labels, choice->place);
    outcome.gpu_milli += batch[i].request.TotalGpuMilli();
    ++outcome.placed;
  }
  return outcome;
}

void Undo(const Outcome& outcome, Cluster* cluster) {
  for (auto share = outcome.shares.rbegin(); share != outcome.shares.rend(); ++share) {
    if (*share) cluster->Remove(**share);
  }
}

// What may place more than the order of arrival: most GPU first, least GPU first, least CPU for its
// GPU first, and shares without a GPU last.
std::vector<Order> OtherOrders(std::span<const Waiting> batch) {
  Order arrival(batch.size());
  std::iota(arrival.begin(), arrival.end(), size_t{0});
  std::vector<Order> orders;
  const auto sorted = [&](auto key) {
    Order order = arrival;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      const auto key_a = key(batch[a].request), key_b = key(batch[b].request);
      return key_a != key_b ? key_a < key_b : a < b;
    });
    if (order != arrival) orders.push_back(std::move(order));
  };
  sorted([](const Request& request) { return -request.TotalGpuMilli(); });
  sorted([](const Request& request) { return request.TotalGpuMilli(); });
  sorted([](const Request& request) {
    return int64_t{request.cpu_milli} * kGpuMilli / std::max(1, request.TotalGpuMilli());
  });
  sorted([](const Request& request) { return request.gpu_count == 0; });
  return orders;
}

}  // namespace

std::vector<std::optional<ShareId>> PlaceBatch(std::span<const Waiting> batch, Cluster* cluster,
                                               Placer* placer) {
  std::vector<std::optional<ShareId>> shares;
  for (; batch.size() > kMaxBatch; batch = batch.subspan(kMaxBatch)) {
    const auto some = PlaceBatch(batch.first(kMaxBatch), cluster, placer);
    shares.insert(shares.end(), some.begin(), some.end());
  }
  Order best_order(batch.size());
  std::iota(best_order.begin(), best_order.end(), size_t{0});
  Outcome best = TryOrder(batch, best_order, cluster, placer);
  if (best.placed < batch.size()) {
    Undo(best, cluster);
    for (const Order& order : OtherOrders(batch)) {
      Outcome outcome = TryOrder(batch, order, cluster, placer);
      Undo(outcome, cluster);
      if (!outcome.BetterThan(best)) continue;
      best = std::move(outcome);
      best_order = order;
    }
    best = TryOrder(batch, best_order, cluster, placer);
  }
  shares.insert(shares.end(), best.shares.begin(), best.shares.end());
  return shares;
}

}  // namespace prorata::policy::placement
