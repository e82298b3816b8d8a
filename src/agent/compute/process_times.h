#pragma once

// The device time of each process, from what NVML says of it.
//
// NVML's driver looks at the device five times a second, and gives all the time since its last look
// to the process whose context is there (H100, driver 580.159.04: bench/results). An answer names,
// of the looks since the last one, the processes, the latest look that saw each, and their part of
// the time in whole percents. So the figures are right in the mean of many looks; those of a second
// are five looks.
//
// What NVML says is not relied upon: a sample may be above 100 %, all of them together may be more
// than the time there was, and its clock may stand still, jump or go back. Where the span cannot be
// right nothing is counted, and counting begins anew. Pure: no clock, no NVML.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "driver/nvml.h"

namespace prorata::agent {

class ProcessTimes {
 public:
  using Samples = std::vector<driver::NvmlTimeSample>;
  struct Figures {
    int64_t span_ns = 0;  // right after the span of the figures before, or after a gap
    // The device ran all the time, so each process was there when a look met it. Else it may have
    // been there at any moment of the span: an idle device is said to be of who was there last.
    bool busy = false;
    struct Ran {
      int64_t ran_ns = 0;
      uint64_t at_us = 0;  // the latest look that saw it, by NVML's clock
    };
    std::map<pid_t, Ran> ran;
  };

  // Figures further apart than this say nothing of the time between.
  static constexpr int64_t kMaxNs = 2 * kNsPerS;

  // The samples to ask NVML for: those after this time of its clock.
  uint64_t since_us() const;

  // NVML's answer, which came at `now_ns`. Empty: it says nothing of the time since the last
  // figures, which a later answer may still cover.
  //
  // NVML does not list idle processes, and says so of an idle device by an answer without samples,
  // as it also does where it has no figures at all. `idle` tells one from the other: the device
  // cannot have run much since the last figures, by another measure.
  std::optional<Figures> Take(const Samples& samples, bool idle, int64_t now_ns);

 private:
  std::optional<Figures> NothingNew(bool idle, int64_t now_ns);
  void BeginAt(uint64_t newest_us, int64_t now_ns);
  Figures RanUntil(uint64_t newest_us, const Samples& samples) const;

  // By NVML's clock: the newest sample ever seen (0: there was none), and until when all is
  // counted, which is later where the device was idle since.
  uint64_t newest_us_ = 0;
  uint64_t counted_us_ = 0;
  int64_t counted_at_ns_ = 0;  // by ours: when that was known
  uint32_t barren_ = 0;        // answers in a row without a new sample
};

}  // namespace prorata::agent
