// What the recorder of `prorata debug trace` costs the agent: an entry written, a decision without
// and with the entries that it makes, and the reply with a page of them. Nanoseconds on the agent's
// one thread, the median of some runs; no target of its own, but part of what contention may cost
// (tests/cost: 2 % of a core a program).

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "agent/compute/device_leases.h"
#include "api/trace.h"

namespace {

using namespace prorata;

constexpr int kRuns = 9;

double MedianNs(int operations, const std::function<void()>& run) {
  std::vector<double> each;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    each.push_back(took.count() / operations);
  }
  std::nth_element(each.begin(), each.begin() + kRuns / 2, each.end());
  return each[kRuns / 2];
}

void BenchWrite() {
  agent::TraceRing ring;
  int64_t now_ns = 0;
  const int entries = 4 * static_cast<int>(agent::TraceRing::kEntries);
  const double ns = MedianNs(entries, [&] {
    for (int i = 0; i < entries; ++i) {
      agent::TraceRing::Entry entry = {};
      entry.time_ns = now_ns += 1'000;
      entry.lane = 1;
      ring.Write(entry);
    }
  });
  std::printf("an entry written into the ring                 %8.1f ns\n", ns);
}

// Shares of which each is shown whether its state is another.
void BenchObserve(size_t shares, bool changes) {
  agent::DeviceTrace trace;
  struct One {
    policy::LeasePolicy::ShareState state;
    agent::DeviceTrace::Live live;
  };
  std::vector<One> all(shares);
  for (size_t i = 0; i < shares; ++i) trace.Begin(all[i].live, i, 0);
  using Phase = policy::LeasePolicy::Phase;
  constexpr int kDecisions = 100'000;
  int64_t now_ns = 0;
  size_t running = 0;
  const double ns = MedianNs(kDecisions, [&] {
    for (int i = 0; i < kDecisions; ++i) {
      now_ns += 1'000;
      if (changes) running = (running + 1) % shares;
      agent::DeviceTrace::Others others;
      for (size_t j = 0; j < shares; ++j) {
        all[j].state.phase = j == running ? Phase::kRunning : Phase::kRunnable;
        others.Show({.state = all[j].state, .contended = true});
      }
      for (One& one : all)
        trace.Write(one.live, {.state = one.state, .contended = true}, others, now_ns);
      trace.WriteDevice(others, now_ns);
    }
  });
  std::printf("a decision on %zu shares, %-22s     %8.1f ns\n", shares,
              changes ? "2 of which change" : "nothing changes", ns);
}

void BenchReply() {
  agent::DeviceTrace trace;
  agent::DeviceTrace::Live live;
  trace.Begin(live, 1, 0);
  trace.Name(live, "train");
  policy::LeasePolicy::ShareState state;
  for (int i = 0; i < 1'000; ++i) {
    using Phase = policy::LeasePolicy::Phase;
    state.phase = i % 2 == 0 ? Phase::kRunning : Phase::kDraining;
    trace.Write(live, {.state = state, .contended = true, .charged_ns = int64_t{i} * 1'234'567}, {},
                int64_t{i} * 1'000'003);
  }
  constexpr int kReplies = 100;
  size_t bytes = 0;
  const double ns = MedianNs(kReplies, [&] {
    for (int i = 0; i < kReplies; ++i) {
      const auto reply = agent::ReadTrace(trace.ring(), {.gpu = "0", .seconds = 10}, 1'000'000'000);
      bytes = api::ToJson(reply).dump().size();
    }
  });
  std::printf("a reply of %zu entries, %zu bytes             %8.0f ns\n", api::kMaxTraceEntries,
              bytes, ns);
}

}  // namespace

int main() {
  BenchWrite();
  for (const size_t shares : {2, 8}) {
    BenchObserve(shares, false);
    BenchObserve(shares, true);
  }
  BenchReply();
  return 0;
}
