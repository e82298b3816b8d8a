#include "agent/compute/process_times.h"

#include <algorithm>
#include <utility>

namespace prorata::agent {
namespace {

// NVML's own samples are up to a second apart, so an answer may cover that much more or less than
// what passed between two answers.
constexpr int64_t kSlackNs = kNsPerS;
// After NVML's clock went back, nothing is newer than the last sample for a long time: every so
// often everything is asked for.
constexpr uint32_t kAskAllEvery = 8;
constexpr uint32_t kWholePercent = 100;
// A busy H100 is said to be so for 99 %, or for 49 % and 49 %.
constexpr int64_t kBusyPercent = 95;

}  // namespace

uint64_t ProcessTimes::since_us() const {
  return barren_ % kAskAllEvery == kAskAllEvery - 1 ? 0 : newest_us_;
}

std::optional<ProcessTimes::Figures> ProcessTimes::Take(const Samples& samples, bool idle,
                                                        int64_t now_ns) {
  uint64_t newest_us = 0;
  for (const driver::NvmlTimeSample& sample : samples) {
    newest_us = std::max(newest_us, sample.time_us);
  }
  if (newest_us == 0 || newest_us == newest_us_) return NothingNew(idle, now_ns);
  const int64_t passed_ns = now_ns - counted_at_ns_;
  const auto most_us = static_cast<uint64_t>((passed_ns + kSlackNs) / kNsPerUs);
  std::optional<Figures> figures;
  const bool follows = newest_us_ != 0 && newest_us > newest_us_ && newest_us > counted_us_;
  if (follows && passed_ns <= kMaxNs && newest_us - counted_us_ <= most_us) {
    figures = RanUntil(newest_us, samples);
  }
  BeginAt(newest_us, now_ns);
  return figures;
}

std::optional<ProcessTimes::Figures> ProcessTimes::NothingNew(bool idle, int64_t now_ns) {
  ++barren_;
  // What has never given a sample may have none to give.
  if (newest_us_ == 0 || !idle) return std::nullopt;
  const int64_t passed_ns = now_ns - std::exchange(counted_at_ns_, now_ns);
  counted_us_ += static_cast<uint64_t>(passed_ns / kNsPerUs);
  if (passed_ns <= 0 || passed_ns > kMaxNs) return std::nullopt;
  Figures figures;
  figures.span_ns = passed_ns;
  return figures;
}

void ProcessTimes::BeginAt(uint64_t newest_us, int64_t now_ns) {
  newest_us_ = counted_us_ = newest_us;
  counted_at_ns_ = now_ns;
  barren_ = 0;
}

ProcessTimes::Figures ProcessTimes::RanUntil(uint64_t newest_us, const Samples& samples) const {
  // A process may have several parts of a device, each with its sample of the same moment.
  std::map<pid_t, std::map<uint64_t, uint32_t>> percents;
  for (const driver::NvmlTimeSample& sample : samples) {
    if (sample.time_us <= newest_us_ || sample.pid <= 0) continue;
    uint32_t& percent = percents[sample.pid][sample.time_us];
    percent = std::min(kWholePercent, percent + std::min(kWholePercent, sample.percent));
  }
  Figures figures;
  figures.span_ns = static_cast<int64_t>(newest_us - counted_us_) * kNsPerUs;
  int64_t all_ns = 0;
  for (const auto& [pid, by_time] : percents) {
    int64_t sum = 0;
    for (const auto& [time_us, percent] : by_time) sum += percent;
    const auto samples_of_it = static_cast<int64_t>(by_time.size());
    const int64_t ran_ns = figures.span_ns * sum / (samples_of_it * kWholePercent);
    figures.ran[pid] = {ran_ns, by_time.rbegin()->first};
    all_ns += ran_ns;
  }
  figures.busy = all_ns >= figures.span_ns / kWholePercent * kBusyPercent;
  if (all_ns <= figures.span_ns) return figures;
  const double scale = static_cast<double>(figures.span_ns) / static_cast<double>(all_ns);
  for (auto& [pid, of] : figures.ran) {
    of.ran_ns = static_cast<int64_t>(static_cast<double>(of.ran_ns) * scale);
  }
  return figures;
}

}  // namespace prorata::agent
