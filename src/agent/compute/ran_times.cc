#include "agent/compute/ran_times.h"

#include <algorithm>
#include <utility>

namespace prorata::agent {
namespace {

// Of what others run: 25 looks of NVML's driver. Longer, a program that begins or ends is seen
// later; shorter, the figures of programs that take turns jump more than they do.
constexpr int64_t kWindowNs = 5 * kNsPerS;
// Of what members measured themselves.
constexpr int64_t kBusyWindowNs = kNsPerS;
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
  looks_.clear();
  const auto figures = processes_.Take(samples, SeemsIdle(shares, now_ns), now_ns);
  if (!figures) return;
  const int64_t before_ns = std::exchange(answered_ns_, now_ns);
  const bool follows = before_ns != 0 && now_ns - before_ns <= kFreshNs;
  if (!follows) answers_.clear();
  answers_.push_back(Divide(*figures, shares, follows ? now_ns - before_ns : figures->span_ns));
  int64_t all_ns = 0;
  for (const Answer& one : answers_) all_ns += one.span_ns;
  while (all_ns - answers_.front().span_ns >= kWindowNs) {
    all_ns -= answers_.front().span_ns;
    answers_.pop_front();
  }
  Count(answers_.back(), shares);
}

RanTimes::Answer RanTimes::Divide(const ProcessTimes::Figures& figures, const Shares& shares,
                                  int64_t passed_ns) {
  Answer answer;
  answer.span_ns = figures.span_ns;
  answer.passed_ns = passed_ns;
  for (const auto& [share, own_ns] : shares.own_ns) {
    const auto total = totals_.find(share);
    const uint64_t measured_ns =
        total != totals_.end() ? own_ns - total->second.own_ns + total->second.late_ns : 0;
    answer.own_ns[share] = std::min(static_cast<int64_t>(measured_ns), passed_ns);
  }
  // A member that has ended stays its share's until NVML no longer names its process.
  std::map<pid_t, Key> owners = shares.members;
  for (const auto& [pid, ran] : figures.ran) {
    auto owner = owners.find(pid);
    if (owner == owners.end()) {
      const auto before = owners_.find(pid);
      if (before != owners_.end()) owner = owners.insert(*before).first;
    }
    const bool known = owner != owners.end() && answer.own_ns.contains(owner->second);
    if (!known) answer.others_ns += ran.ran_ns;
    if (!known || ran.ran_ns == 0) continue;
    const int64_t within_ns = figures.busy ? 0 : figures.span_ns;
    looks_.push_back({owner->second, ran.ran_ns, ran.at_us, within_ns});
  }
  owners_ = std::move(owners);
  return answer;
}

double RanTimes::Part(size_t latest) const {
  double span_ns = 0, others_ns = 0, passed_ns = 0, own_ns = 0;
  for (size_t i = 0; i < answers_.size(); ++i) {
    const Answer& answer = answers_[i];
    span_ns += static_cast<double>(answer.span_ns);
    others_ns += static_cast<double>(answer.others_ns);
    if (i + latest < answers_.size()) continue;
    passed_ns += static_cast<double>(answer.passed_ns);
    for (const auto& [share, ns] : answer.own_ns) own_ns += static_cast<double>(ns);
  }
  const double left_ns = passed_ns * (1 - others_ns / span_ns);
  return own_ns <= left_ns ? 1 : left_ns / own_ns;
}

void RanTimes::Count(const Answer& answer, const Shares& shares) {
  const double part = Part(answers_.size());
  for (const auto& [share, own_ns] : shares.own_ns) {
    const auto found = totals_.find(share);
    Total& total = totals_[share];
    const uint64_t measured_ns = own_ns - total.own_ns + total.late_ns;
    const auto within_ns = static_cast<uint64_t>(answer.own_ns.at(share));
    // Of a time without figures what was measured is all that is known.
    const bool follows =
        found != totals_.end() && measured_ns <= 2 * static_cast<uint64_t>(answer.passed_ns);
    total.counted_ns +=
        follows ? static_cast<uint64_t>(part * static_cast<double>(within_ns)) : measured_ns;
    total.late_ns = follows ? measured_ns - within_ns : 0;
    total.own_ns = own_ns;
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
  int64_t passed_ns = 0;
  int64_t own_ns = 0;
  size_t latest = 0;
  for (auto answer = answers_.rbegin(); answer != answers_.rend(); ++answer) {
    const auto found = answer->own_ns.find(share);
    if (found == answer->own_ns.end() || passed_ns >= kBusyWindowNs) break;
    passed_ns += answer->passed_ns;
    own_ns += found->second;
    ++latest;
  }
  if (passed_ns == 0) return std::nullopt;
  return Part(latest) * static_cast<double>(own_ns) / static_cast<double>(passed_ns);
}

uint64_t RanTimes::BusyNs(Key share, uint64_t own_ns, int64_t now_ns) const {
  const auto found = totals_.find(share);
  if (found == totals_.end()) return own_ns;
  const Total& total = found->second;
  return total.counted_ns + (Fresh(now_ns) ? 0 : own_ns - total.own_ns + total.late_ns);
}

}  // namespace prorata::agent
