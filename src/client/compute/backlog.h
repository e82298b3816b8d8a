#pragma once

// How much work is on its way to the device, by estimated device time, and what a finished batch
// tells about it. Pure. No charge depends on an estimate: the agent charges by its own clock.
//
// A stream's work is cut into batches: one or more launches, then a fence. A stream counts its
// launches in one 64-bit word that only grows: their number in the upper 24 bits, nanoseconds of
// estimates below. What was launched since the last fence is the difference of two such words,
// which is right however often the lower part overflows into the upper.

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace prorata::client {

// A batch is fenced when its estimate reaches this, shared by the streams that are busy at once.
inline constexpr uint64_t kFenceAtNs = 500'000;
inline constexpr uint64_t kMinFenceAtNs = 50'000;
// What a launch of unknown length is taken for in the bound of the backlog until one was measured.
inline constexpr uint32_t kUnknownNs = 2'000'000;
// What its first measured launch counts as at least, until the process has shown that its launches
// take less: a function may take 20 us now and 20 ms then, and within the bound are fifty of its
// launches if it is taken for the one. Larger, a program with short kernels keeps less submitted at
// its start; smaller, others meet a second of work that was taken for a millisecond.
inline constexpr uint32_t kFirstNs = 500'000;
// Beside a share that stalls: no more than two time slices of the hardware (2 ms on the simulated
// GPU) of others may lie between the ends of a batch that began and ended in slices of its own.
inline constexpr uint64_t kSlicesOfOthersNs = 4'000'000;
// Among such slices a batch that took no more than this above what was expected had the device all
// along: whoever had to wait for a slice of another's took longer. Larger, such a slice counts as
// its own; smaller, of kernels that take now this and now that only the short ones are measured.
inline constexpr uint64_t kUnslicedNs = 500'000;
// Until the device has turned from another process to this one (0.1 ms on the simulated GPU).
// Larger, the first launch of a slice says less of its function; smaller, a function of a few
// microseconds counts as one that takes what the turn does.
inline constexpr uint64_t kTurnNs = 250'000;
// A launch that is fenced within this was fenced at once.
inline constexpr uint64_t kPromptNs = 100'000;

inline constexpr uint32_t kCountShift = 40;
inline constexpr uint64_t kOneLaunch = uint64_t{1} << kCountShift;
inline constexpr uint64_t kNsMask = kOneLaunch - 1;
inline uint64_t LaunchesIn(uint64_t word) { return word >> kCountShift; }
inline uint64_t NsIn(uint64_t word) { return word & kNsMask; }

struct Batch {
  uint64_t key = 0;  // of its launches, if all are the same; 0: mixed
  uint64_t launches = 0;
  uint64_t estimate_ns = 0;
  bool unknown = false;  // holds a launch without an estimate
  bool pressed = false;  // when it was fenced, the fence before it was still outstanding: the
                         // device had work all along, so end to end is what the batch took
  bool turns = false;    // the first of a slice: the device may have had to turn to this process
  bool prompt = false;   // fenced right after its first launch, with a start event of its own, ...
  uint64_t gap_ns = 0;   // ... so long after which the launch was made
  uint32_t streams = 1;  // busy on the device when it was fenced, this one included
  uint64_t launching_ns = 0;  // from its start until it was fenced: the device may have idled then
};

// Other shares that ran on the device meanwhile.
struct Beside {
  bool in_gaps = false;  // in the gaps between launches, and this one in theirs; or nobody knows
  // So many contexts, this one included, have the hardware's time slices in turn.
  uint32_t in_slices = 1;
};

struct Measured {
  uint64_t busy_ns = 0;   // what the figure of device time grows by
  uint64_t least_ns = 0;  // learned per launch of `key` ...
  uint64_t most_ns = 0;   // ... within these bounds; 0: nothing
  bool doubtful = false;  // the estimates do not fit: the next launch is to be measured alone
  bool too_long = false;  // the estimate is: it was learned beside others, perhaps
};

// `elapsed_ns`: from the batch's start (its own event, or the fence before it) to its fence.
// Between launches that come slowly the device idles, and that is inside `elapsed`: only a batch
// whose stream had work all along, or a single launch that was fenced at once, took what was
// measured. That one took less by its gap, unless its thread was stopped after the launch itself:
// of a long gap, how much of it was before is not known. Beside n streams it took an nth of that at
// least, and beside other contexts as much less as they may have had of it.
inline Measured MeasureBatch(const Batch& batch, uint64_t elapsed_ns, const Beside& beside = {}) {
  const bool exact = batch.pressed || (batch.launches <= 1 && batch.prompt);
  const uint64_t streams = std::max<uint64_t>(1, batch.streams);
  const uint64_t unsliced_ns = batch.estimate_ns + std::min(batch.estimate_ns, kUnslicedNs);
  const bool sliced = beside.in_slices > 1 && (batch.unknown || elapsed_ns > unsliced_ns);
  const uint64_t contexts = sliced ? beside.in_slices : 1;
  const bool bounded = exact || sliced;
  const uint64_t gap_ns = !bounded || batch.pressed
                              ? 0
                              : std::min(exact ? batch.gap_ns : batch.launching_ns, elapsed_ns);
  const uint64_t without_gap_ns = elapsed_ns - gap_ns;
  const bool before = exact && (batch.unknown || gap_ns <= without_gap_ns);
  const uint64_t most_ns = before ? without_gap_ns : elapsed_ns;
  const uint64_t others_ns =
      std::min((sliced ? kSlicesOfOthersNs : 0) + (batch.turns ? kTurnNs : 0), without_gap_ns);
  const uint64_t least_ns = (without_gap_ns - others_ns) / contexts;
  Measured seen;
  seen.busy_ns = batch.unknown ? most_ns / streams : batch.estimate_ns;
  if (bounded && (streams == 1 || sliced) && !beside.in_gaps) {
    seen.busy_ns = std::clamp(seen.busy_ns, least_ns / streams, most_ns);
  }
  if (beside.in_gaps && !batch.unknown) return seen;
  if (batch.key != 0 && batch.launches != 0 && (bounded || elapsed_ns < batch.estimate_ns)) {
    seen.most_ns = std::max<uint64_t>(1, most_ns / batch.launches);
    seen.least_ns = bounded ? least_ns / batch.launches / streams : 1;
  }
  const uint64_t room_ns = batch.estimate_ns * streams * contexts * 5 / 4 + others_ns;
  if (batch.key == 0 && exact) {
    seen.doubtful = elapsed_ns > room_ns || elapsed_ns < batch.estimate_ns / 2;
  } else if (!exact) {
    seen.doubtful = elapsed_ns > 2 * room_ns;
  }
  seen.too_long = elapsed_ns < batch.estimate_ns - batch.estimate_ns / 4;
  return seen;
}

// Fenced work outstanding on a device.
class Backlog {
 public:
  // It may run since `since_ns`, at the earliest.
  void Add(uint64_t ns, int64_t since_ns) {
    ns_.fetch_add(ns);
    count_.fetch_add(1);
    int64_t end_ns = end_ns_.load(std::memory_order_relaxed);
    while (!end_ns_.compare_exchange_weak(
        end_ns, (end_ns > since_ns ? end_ns : since_ns) + static_cast<int64_t>(ns),
        std::memory_order_relaxed)) {
    }
  }
  void Remove(uint64_t ns) {
    ns_.fetch_sub(ns);
    count_.fetch_sub(1);
  }
  uint64_t ns() const { return ns_.load(std::memory_order_relaxed); }
  // The oldest item that is not done. What is expected of all of them is put right by it: none of
  // the others has begun.
  void HeadIs(uint64_t head_ns, int64_t now_ns) {
    head_ns_.store(head_ns, std::memory_order_relaxed);
    end_ns_.store(now_ns + static_cast<int64_t>(StillNs(now_ns)), std::memory_order_relaxed);
  }
  // The estimates may have been too long.
  void AllIsDone(int64_t now_ns) {
    int64_t end_ns = end_ns_.load(std::memory_order_relaxed);
    while (end_ns > now_ns &&
           !end_ns_.compare_exchange_weak(end_ns, now_ns, std::memory_order_relaxed)) {
    }
  }
  int64_t end_ns() const { return end_ns_.load(std::memory_order_relaxed); }
  // What is still to run, if all of it ran one after the other since it was added.
  uint64_t StillNs(int64_t now_ns) const {
    const uint64_t all_ns = ns();
    const uint64_t head_ns = head_ns_.load(std::memory_order_relaxed);
    const int64_t until_ns = end_ns_.load(std::memory_order_relaxed) - now_ns;
    const uint64_t left_ns = until_ns > 0 ? static_cast<uint64_t>(until_ns) : 0;
    const uint64_t least_ns = all_ns > head_ns ? all_ns - head_ns : 0;
    return left_ns > all_ns ? all_ns : left_ns < least_ns ? least_ns : left_ns;
  }
  uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  // Whether another launch must wait, if nothing has run of what is outstanding: a bound that a
  // launch can test without a clock.
  bool Full(uint64_t bound_ns) const { return ns() >= bound_ns && count() != 0; }

 private:
  std::atomic<uint64_t> ns_{0};
  std::atomic<uint32_t> count_{0};
  std::atomic<uint64_t> head_ns_{0};
  std::atomic<int64_t> end_ns_{0};  // when all is expected to be done
};

}  // namespace prorata::client
