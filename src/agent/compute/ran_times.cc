#include "agent/compute/ran_times.h"

#include <algorithm>
#include <utility>

namespace prorata::agent {
namespace {

constexpr int64_t kWindowNs = kNsPerS;
constexpr int64_t kFreshNs = ProcessTimes::kMaxNs;
// What members measured of so small a part of the time may be a rounding.
constexpr int64_t kIdlePart = 50;

}  // namespace

bool RanTimes::Fresh(int64_t now_ns) const {
  return !answers_.empty() && now_ns - answered_ns_ <= kFreshNs;
}

bool RanTimes::SeemsIdle(const Shares& shares, int64_t now_ns) const {
  if (answered_ns_ == 0) return false;
  uint64_t ran_ns = 0;
  for (const auto& [share, own_ns] : shares.own_ns) {
    const auto total = totals_.find(share);
    ran_ns += own_ns - (total != totals_.end() ? total->second.own_ns : 0);
  }
  const int64_t passed_ns = std::clamp<int64_t>(now_ns - answered_ns_, 0, kFreshNs);
  return ran_ns <= static_cast<uint64_t>(passed_ns / kIdlePart);
}

void RanTimes::Take(const ProcessTimes::Samples& samples, const Shares& shares, int64_t now_ns) {
  std::erase_if(totals_, [&](const auto& one) { return !shares.own_ns.contains(one.first); });
  std::erase_if(unaudited_ns_, [&](const auto& one) { return !shares.own_ns.contains(one.first); });
  const auto figures = processes_.Take(samples, SeemsIdle(shares, now_ns), now_ns);
  if (!figures) return;
  if (!Fresh(now_ns)) {
    // What its members measured meanwhile is all that is known of the gap.
    for (auto& [share, total] : totals_) total.has_figures = false;
    answers_.clear();
  }
  answered_ns_ = now_ns;
  Answer& answer = answers_.emplace_back(Divide(*figures, shares));
  Count(answer, shares);
  int64_t all_ns = 0;
  for (const Answer& one : answers_) all_ns += one.span_ns;
  while (all_ns - answers_.front().span_ns >= kWindowNs) {
    all_ns -= answers_.front().span_ns;
    answers_.pop_front();
  }
}

RanTimes::Answer RanTimes::Divide(const ProcessTimes::Figures& figures, const Shares& shares) {
  Answer answer;
  answer.span_ns = figures.span_ns;
  for (const auto& [share, own_ns] : shares.own_ns) answer.ran_ns[share] = 0;
  // A member that has ended stays its share's until NVML no longer names its process.
  std::map<pid_t, Key> owners = shares.members;
  for (const auto& [pid, ran_ns] : figures.ran_ns) {
    auto owner = owners.find(pid);
    if (owner == owners.end()) {
      const auto before = owners_.find(pid);
      if (before != owners_.end()) owner = owners.insert(*before).first;
    }
    const bool known = owner != owners.end() && answer.ran_ns.contains(owner->second);
    (known ? answer.ran_ns[owner->second] : answer.others_ns) += ran_ns;
  }
  owners_ = std::move(owners);
  return answer;
}

void RanTimes::Count(const Answer& answer, const Shares& shares) {
  unaudited_span_ns_ += answer.span_ns;
  for (const auto& [share, ran_ns] : answer.ran_ns) {
    unaudited_ns_[share] += ran_ns;
    Total& total = totals_[share];
    const uint64_t own_ns = shares.own_ns.at(share);
    total.counted_ns += total.has_figures ? static_cast<uint64_t>(ran_ns) : own_ns - total.own_ns;
    total.own_ns = own_ns;
    total.has_figures = true;
  }
}

std::optional<double> RanTimes::Others(int64_t now_ns) const {
  if (!Fresh(now_ns)) return std::nullopt;
  int64_t span_ns = 0;
  int64_t others_ns = 0;
  for (const Answer& answer : answers_) {
    span_ns += answer.span_ns;
    others_ns += answer.others_ns;
  }
  return static_cast<double>(others_ns) / static_cast<double>(span_ns);
}

std::optional<double> RanTimes::Busy(Key share, int64_t now_ns) const {
  if (!Fresh(now_ns)) return std::nullopt;
  int64_t span_ns = 0;
  int64_t ran_ns = 0;
  for (const Answer& answer : answers_) {
    const auto found = answer.ran_ns.find(share);
    if (found == answer.ran_ns.end()) continue;
    span_ns += answer.span_ns;
    ran_ns += found->second;
  }
  if (span_ns == 0) return std::nullopt;
  return static_cast<double>(ran_ns) / static_cast<double>(span_ns);
}

uint64_t RanTimes::BusyNs(Key share, uint64_t own_ns, int64_t now_ns) const {
  const auto found = totals_.find(share);
  if (found == totals_.end()) return own_ns;
  const Total& total = found->second;
  return total.counted_ns + (Fresh(now_ns) ? 0 : own_ns - total.own_ns);
}

std::optional<std::map<RanTimes::Key, int64_t>> RanTimes::TakeAudit() {
  // An answer may be a little shorter than the period.
  if (unaudited_span_ns_ < kNsPerS - kPeriodNs / 2) return std::nullopt;
  unaudited_span_ns_ = 0;
  return std::exchange(unaudited_ns_, {});
}

}  // namespace prorata::agent
