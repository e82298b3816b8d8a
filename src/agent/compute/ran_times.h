#pragma once

// What ran on one device: each share's kernels, by what its members measured, and those of programs
// that are in no share, by NVML (process_times.h).
//
// Members take the time of other programs in the middle of theirs for their own: all together have
// no more than the others leave of the device, divided as they measured it. Figures are of about
// the last second, those of others of the last five, and cover whole answers of NVML, so they are
// up to one answer old. Where there have been none for a while, nothing is said. Pure: no clock, no
// NVML.

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "agent/compute/process_times.h"

namespace prorata::agent {

class RanTimes {
 public:
  using Key = uint64_t;  // of a share
  // How the shares of the device are when NVML answers.
  struct Shares {
    std::map<pid_t, Key> members;    // their processes, dead ones too as long as they are known
    std::map<Key, uint64_t> own_ns;  // of every share: what its members measured, ever
  };

  // How often NVML is to be asked: the more answers a second has, the less a percent matters.
  static constexpr int64_t kPeriodNs = 250 * kNsPerMs;

  uint64_t since_us() const { return processes_.since_us(); }
  void Take(const ProcessTimes::Samples& samples, const Shares& shares, int64_t now_ns);

  // Parts of the device's wall time, from 0 to 1. Empty: there are no figures.
  std::optional<double> Others(int64_t now_ns) const;
  std::optional<double> Busy(Key share, int64_t now_ns) const;
  // Since the share is known; never goes back. `own_ns` as in Shares, now.
  uint64_t BusyNs(Key share, uint64_t own_ns, int64_t now_ns) const;

  // When NVML saw a process of a share on the device, and for how much of its time that stands.
  struct Look {
    Key share = 0;
    int64_t ran_ns = 0;
    uint64_t at_us = 0;     // by NVML's clock, ...
    int64_t within_ns = 0;  // or so long before that
  };
  // Of the last Take; each is given once.
  std::vector<Look> TakeLooks() { return std::exchange(looks_, {}); }

 private:
  struct Answer {
    int64_t span_ns = 0;    // from look to look of NVML's driver, which looks five times a second
    int64_t others_ns = 0;  // of that
    int64_t passed_ns = 0;  // from answer to answer, by our clock
    // Of that, for every share that there was: what its members measured.
    std::map<Key, int64_t> own_ns;
  };
  struct Total {
    uint64_t counted_ns = 0;
    uint64_t own_ns = 0;   // as of the last figures: is in counted_ns, in their place, ...
    uint64_t late_ns = 0;  // ... but so much, which was more than their time: is in the next
  };
  bool Fresh(int64_t now_ns) const;
  // By what members measured since the last figures, which an NVML that does not answer may mean as
  // well.
  bool SeemsIdle(const Shares& shares, int64_t now_ns) const;
  Answer Divide(const ProcessTimes::Figures& figures, const Shares& shares, int64_t passed_ns);
  void Count(const Answer& answer, const Shares& shares);
  // What the device can have had of what members measured in so many of the latest answers, from 0
  // to 1.
  double Part(size_t latest) const;

  ProcessTimes processes_;
  int64_t answered_ns_ = 0;      // when there were figures last
  std::map<pid_t, Key> owners_;  // of the processes that NVML named last, and of all members
  std::deque<Answer> answers_;   // of about five seconds
  std::map<Key, Total> totals_;
  std::vector<Look> looks_;
};

}  // namespace prorata::agent
