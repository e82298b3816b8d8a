#include "bench/gpu_facts/timeline.h"

#include <algorithm>

namespace prorata::gpufacts {
namespace {

struct Moment {
  uint64_t at_ns;
  bool second;
  bool operator<(const Moment& other) const { return at_ns < other.at_ns; }
};

struct Run {
  uint64_t first_ns;
  uint64_t last_ns;
  bool second;
};

std::pair<uint64_t, uint64_t> Window(const std::vector<Stamp>& stamps) {
  std::pair<uint64_t, uint64_t> window = stamps.front();
  for (const auto& [start, end] : stamps) {
    window.first = std::min(window.first, start);
    window.second = std::max(window.second, end);
  }
  return window;
}

std::vector<Run> ReadRuns(const std::vector<Stamp>& first, const std::vector<Stamp>& second) {
  if (first.empty() || second.empty()) return {};
  const auto a = Window(first);
  const auto b = Window(second);
  const uint64_t from = std::max(a.first, b.first);
  const uint64_t to = std::min(a.second, b.second);
  std::vector<Moment> moments;
  const auto add = [&](const std::vector<Stamp>& stamps, bool is_second) {
    for (const auto& [start, end] : stamps) {
      if (start >= from && start <= to) moments.push_back({start, is_second});
      if (end >= from && end <= to) moments.push_back({end, is_second});
    }
  };
  add(first, false);
  add(second, true);
  std::stable_sort(moments.begin(), moments.end());
  std::vector<Run> runs;
  for (const Moment& moment : moments) {
    if (runs.empty() || runs.back().second != moment.second) {
      runs.push_back({moment.at_ns, moment.at_ns, moment.second});
    } else {
      runs.back().last_ns = moment.at_ns;
    }
  }
  return runs;
}

double Us(uint64_t from_ns, uint64_t to_ns) { return static_cast<double>(to_ns - from_ns) / 1e3; }

}  // namespace

Slices ReadSlices(const std::vector<Stamp>& first, const std::vector<Stamp>& second) {
  const std::vector<Run> runs = ReadRuns(first, second);
  Slices turns;
  double sum[2] = {};
  for (size_t i = 1; i + 1 < runs.size(); ++i) {
    const double length = Us(runs[i].first_ns, runs[i].last_ns);
    sum[runs[i].second ? 1 : 0] += length;
    turns.run_us.push_back(length);
    turns.gap_us.push_back(Us(runs[i].last_ns, runs[i + 1].first_ns));
    turns.slice_us.push_back(Us(runs[i].first_ns, runs[i + 1].first_ns));
  }
  if (sum[0] + sum[1] > 0) turns.first_share = sum[0] / (sum[0] + sum[1]);
  return turns;
}

std::vector<double> Gaps(const std::vector<Stamp>& kernels) {
  std::vector<double> gaps;
  for (size_t i = 1; i < kernels.size(); ++i) {
    if (kernels[i].first < kernels[i - 1].second) continue;
    gaps.push_back(static_cast<double>(kernels[i].first - kernels[i - 1].second));
  }
  return gaps;
}

uint64_t ClockStep(const std::vector<Stamp>& kernels) {
  std::vector<uint64_t> times;
  for (const auto& [start, end] : kernels) {
    times.push_back(start);
    times.push_back(end);
  }
  std::sort(times.begin(), times.end());
  uint64_t step = 0;
  for (size_t i = 1; i < times.size(); ++i) {
    const uint64_t difference = times[i] - times[i - 1];
    if (difference > 0 && (step == 0 || difference < step)) step = difference;
  }
  return step;
}

}  // namespace prorata::gpufacts
