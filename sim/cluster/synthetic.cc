#include <algorithm>
#include <array>
#include <bit>
#include <tuple>

#include "sim/cluster/simulate.h"

namespace prorata::sim::cluster {

Nodes DrawNodes(const Nodes& nodes, int64_t gpus, uint64_t seed) {
  std::mt19937_64 random(seed);
  Nodes drawn;
  drawn.models = nodes.models;
  std::vector<Node> order;
  int64_t copy = 0;
  for (int64_t have = 0; have < gpus;) {
    if (order.empty()) {
      order = nodes.nodes;
      Shuffle(&random, &order);
      ++copy;
    }
    Node node = order.back();
    order.pop_back();
    have += node.spec.gpu_count;
    if (copy > 1) node.name += "-" + std::to_string(copy);
    drawn.nodes.push_back(std::move(node));
  }
  return drawn;
}

Nodes SyntheticNodes() {
  Nodes nodes;
  nodes.models = {"GPU"};
  nodes.nodes.push_back(
      {"node", {.cpu_milli = 128'000, .memory_mib = 1'048'576, .gpu_count = 8}, ""});
  return nodes;
}

Pods SyntheticPods(uint64_t seed) {
  struct Kind {
    int parts;  // of 100
    policy::placement::Request request;
  };
  constexpr std::array<Kind, 9> kKinds = {{
      {8, {.cpu_milli = 16'000, .memory_mib = 32'768}},
      {12, {.cpu_milli = 2'000, .memory_mib = 8'192, .gpu_count = 1, .gpu_milli = 125}},
      {16, {.cpu_milli = 4'000, .memory_mib = 16'384, .gpu_count = 1, .gpu_milli = 250}},
      {8, {.cpu_milli = 6'000, .memory_mib = 24'576, .gpu_count = 1, .gpu_milli = 350}},
      {12, {.cpu_milli = 8'000, .memory_mib = 32'768, .gpu_count = 1, .gpu_milli = 500}},
      {6, {.cpu_milli = 8'000, .memory_mib = 49'152, .gpu_count = 1, .gpu_milli = 700}},
      {30, {.cpu_milli = 11'000, .memory_mib = 65'536, .gpu_count = 1, .gpu_milli = 1000}},
      {5, {.cpu_milli = 22'000, .memory_mib = 131'072, .gpu_count = 2, .gpu_milli = 1000}},
      {3, {.cpu_milli = 88'000, .memory_mib = 524'288, .gpu_count = 8, .gpu_milli = 1000}},
  }};
  constexpr int kPods = 10'000;
  std::mt19937_64 random(seed);
  Pods pods;
  for (int i = 0; i < kPods; ++i) {
    auto part = static_cast<int>(Draw(&random, 100));
    size_t kind = 0;
    while (part >= kKinds[kind].parts) part -= kKinds[kind++].parts;
    Pod pod;
    pod.name = "pod-" + std::to_string(i);
    pod.request = kKinds[kind].request;
    pods.pods.push_back(std::move(pod));
  }
  NumberKinds(&pods);
  return pods;
}

namespace {

bool AllFit(const Nodes& nodes, int64_t count, const Pods& pods, Arrivals arrivals) {
  Nodes some;
  some.models = nodes.models;
  for (int64_t i = 0; i < count; ++i) {
    some.nodes.push_back(nodes.nodes[static_cast<size_t>(i) % nodes.nodes.size()]);
  }
  if (some.GpuMilli() == 0) return false;
  RunOptions options;
  options.arrivals = arrivals == Arrivals::kTimes ? Arrivals::kTimes : Arrivals::kTrace;
  const RunResult result = RunPolicy(some, pods, options);
  return result.dropped == 0 && result.waited == 0;
}

int64_t GpusNeeded(const Nodes& nodes, const Pods& pods, Arrivals arrivals) {
  constexpr int64_t kMaxNodes = int64_t{1} << 20;
  int64_t enough = 1;
  while (!AllFit(nodes, enough, pods, arrivals)) {
    enough *= 2;
    if (enough > kMaxNodes) return -1;  // a pod fits no node
  }
  int64_t few = enough / 2;
  while (enough - few > 1) {
    const int64_t middle = few + (enough - few) / 2;
    (AllFit(nodes, middle, pods, arrivals) ? enough : few) = middle;
  }
  int64_t gpus = 0;
  for (int64_t i = 0; i < enough; ++i) {
    gpus += nodes.nodes[static_cast<size_t>(i) % nodes.nodes.size()].spec.gpu_count;
  }
  return gpus;
}

// A pod that fits no empty node would make every cluster too small.
Pods WithoutMisfits(const Nodes& nodes, const Pods& pods) {
  const policy::placement::Workload workload;
  policy::placement::Cluster cluster(workload);
  AddNodes(nodes, &cluster);
  std::vector<int> fits(pods.kinds, -1);
  Pods some = pods;
  std::erase_if(some.pods, [&](const Pod& pod) {
    int& known = fits[pod.kind];
    for (uint32_t node = 0; known < 0 && node < cluster.size(); ++node) {
      const auto& state = cluster.node(node);
      if (!policy::placement::HostFits(pod.request, state)) continue;
      const auto gpus = policy::placement::FittingGpus(pod.request, state);
      if (pod.request.gpu_count == 0 || std::popcount(gpus) >= pod.request.gpu_count) known = 1;
    }
    return known < 0;
  });
  return some;
}

}  // namespace

Plan PlanGpus(const Nodes& nodes, const Pods& pods, Arrivals arrivals) {
  constexpr uint64_t kSeed = 42;
  Nodes order = nodes;
  std::mt19937_64 random(kSeed);
  Shuffle(&random, &order.nodes);
  Pods shared = WithoutMisfits(nodes, pods);
  if (arrivals != Arrivals::kTimes) {  // they are all there at once: the largest first
    std::sort(shared.pods.begin(), shared.pods.end(), [](const Pod& a, const Pod& b) {
      const auto size = [](const Pod& pod) {
        return std::tuple(-pod.request.TotalGpuMilli(), -pod.request.cpu_milli);
      };
      return size(a) != size(b) ? size(a) < size(b) : a.name < b.name;
    });
  }
  Pods whole = shared;
  for (Pod& pod : whole.pods) {
    if (pod.request.gpu_count > 0) pod.request.gpu_milli = policy::placement::kGpuMilli;
  }
  NumberKinds(&whole);
  return {GpusNeeded(order, shared, arrivals), GpusNeeded(order, whole, arrivals)};
}

}  // namespace prorata::sim::cluster
