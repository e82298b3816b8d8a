#pragma once

// How much work is on its way to the device, by estimated device time. Pure.
//
// A stream's work is cut into batches: one or more launches, then a fence. A batch under way is one
// 64-bit word per stream, so that a launch adds to it with a single atomic: the number of launches
// in the upper 24 bits, nanoseconds below. A batch is fenced when its estimate reaches kFenceAtNs,
// or as soon as it holds a launch of unknown length.

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace prorata::client {

inline constexpr uint64_t kFenceAtNs = 500'000;
// What a launch of unknown length is taken for in the bound of the backlog until it is measured.
inline constexpr uint64_t kUnknownNs = 2'000'000;

// The most that a handover adds to the first batch of a turn, its overlap with others apart.
inline constexpr uint64_t kHandoverNs = 500'000;

// A launch that is fenced within this was fenced at once.
inline constexpr int64_t kPromptNs = 100'000;

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
  bool first = false;    // the first under a contended lease: its start may lie in the last work of
                         // the holder before, and in the device's switch
  int64_t host_ns = 0;   // from its first launch to its fence, on the host
  // Of the context's streams, when it was fenced, this one included: that had fenced work begun,
  // and that had a batch under way.
  uint32_t beside = 1;
  uint32_t open = 1;
};

struct BatchCharge {
  uint64_t busy_ns = 0;     // to be charged
  uint64_t learned_ns = 0;  // per launch of `key`, at most; 0: nothing learned
  uint64_t least_ns = 0;    // and at least
  bool doubtful = false;    // the estimates of this batch do not fit what was measured, or may not
};

// Of a context, whose streams run beside each other: device time that was measured and that nobody
// was charged for. It was a gap, or is another stream's, which is measured later.
struct Uncharged {
  uint64_t ns = 0;
  uint64_t last_ns = 0;  // what the batch measured last was charged
};

// elapsed_ns: from the batch's start (its own start event, or the fence before it) to its fence.
// beyond_ns: how much later than everything measured so far in this context it ended; work that
// overlaps with other streams is charged once (union), so no more than that counts.
//
// streams: of the context, that have fenced work begun. Kernels that fill the device run one after
// the other, whatever their streams: beside others that are busy all along a batch takes so many
// times what it takes alone. Where others may have been done, or may have had work that was behind
// no fence yet, its own time is between its part and all of it. A charge that an estimate bounds
// leaves time over, which may be the other streams', whose own fences lie a little later:
// `uncharged` is what they may still claim, as far as it lies within their own elapsed time.
//
// Between launches that come slowly the device idles, and that is inside `elapsed`. When the host
// was as slow as the device, the estimate bounds the charge; where the device was the slower one,
// or the batch is a single launch that was fenced at once, the measurement is the truth (a single
// launch whose fence came later may have a night's sleep behind it). But a host that synchronises
// between launches is as slow as the device however long they take: so estimates that cover less
// than half of a batch are doubted, and the next launch is measured alone. Else a function that was
// learned to be short, and is long since, would go on being charged as short. And a batch that took
// less in all, gaps and all, than its launches are estimated to take shows an estimate too long.
//
// The first batch of a turn is measured with the end of the turn before it, which overlaps a
// little, and with the device's switch: neither is its own. Now and then all of it ran beside the
// other's work: a holder that was thought idle launched at the same moment. Where no more than that
// was added to what was expected, it took what was expected; should it have grown, the next launch,
// which is measured alone, shows it.
inline BatchCharge ChargeOf(const Batch& batch, uint64_t elapsed_ns, int64_t beyond_ns,
                            uint32_t streams, Uncharged* uncharged) {
  BatchCharge charge;
  const bool alone = batch.launches <= 1 && (batch.unknown || batch.host_ns < kPromptNs);
  const bool truth =
      alone || batch.pressed || static_cast<uint64_t>(batch.host_ns) * 2 < elapsed_ns;
  const uint64_t beside_ns = batch.estimate_ns * streams;
  const uint64_t roomy_ns = beside_ns + beside_ns / 4;
  uint64_t busy_ns = elapsed_ns;
  if (!truth && !batch.unknown && busy_ns > batch.estimate_ns) busy_ns = batch.estimate_ns;
  if (truth && batch.key != 0 && batch.launches != 0) {
    const bool probe = alone && batch.unknown;
    const uint64_t few = probe ? 1 : batch.pressed ? streams : std::min(streams, batch.beside);
    const uint64_t many = std::max({streams, batch.beside, batch.open});
    charge.learned_ns = elapsed_ns / (batch.launches * few);
    charge.least_ns = elapsed_ns / (batch.launches * many);
    if (charge.learned_ns == 0) charge.learned_ns = 1;
  }
  if (batch.key == 0 && truth && !batch.unknown) {
    charge.doubtful = elapsed_ns > roomy_ns || elapsed_ns < batch.estimate_ns / 2;
  }
  if (!truth && !batch.unknown && elapsed_ns > 2 * roomy_ns) charge.doubtful = true;
  if (!truth && !batch.unknown && elapsed_ns < batch.estimate_ns) charge.doubtful = true;
  const bool handover = batch.first && !batch.unknown && elapsed_ns > batch.estimate_ns &&
                        elapsed_ns < 2 * batch.estimate_ns + kHandoverNs;
  if (handover) {
    const uint64_t most_ns = batch.estimate_ns < kHandoverNs ? batch.estimate_ns : kHandoverNs;
    charge = {.doubtful = elapsed_ns > batch.estimate_ns + most_ns};
    busy_ns = batch.estimate_ns;
  }
  const uint64_t later_ns = beyond_ns < 0 ? 0 : static_cast<uint64_t>(beyond_ns);
  const uint64_t before_ns = elapsed_ns > later_ns ? elapsed_ns - later_ns : 0;
  // Where all of its time was busy, what was charged last was a part of that, as a rule.
  const uint64_t charged_ns = truth ? std::min(uncharged->last_ns, before_ns) : 0;
  const uint64_t claimed_ns = std::min(uncharged->ns, before_ns - charged_ns);
  charge.busy_ns = std::min(busy_ns, later_ns + claimed_ns);
  const uint64_t left_ns = claimed_ns + std::min(later_ns, elapsed_ns) - charge.busy_ns;
  *uncharged = {.ns = handover ? 0 : left_ns, .last_ns = charge.busy_ns};
  return charge;
}

// Of the only stream of its context.
inline BatchCharge ChargeOf(const Batch& batch, uint64_t elapsed_ns, int64_t beyond_ns) {
  Uncharged none;
  return ChargeOf(batch, elapsed_ns, beyond_ns, 1, &none);
}

// What `charge` becomes when others ran beside the batch, for how long nobody knows: what is known
// of its launches from better times, if that is less.
inline BatchCharge ChargeInCrowd(const Batch& batch, const BatchCharge& charge) {
  const bool less = !batch.unknown && batch.estimate_ns < charge.busy_ns;
  return {.busy_ns = less ? batch.estimate_ns : charge.busy_ns};
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
  // Whether another launch must wait. At the bound nothing more is queued; a single item may be
  // longer than the bound, and then it is alone.
  bool Full(uint64_t bound_ns) const { return ns() >= bound_ns && count() != 0; }

 private:
  std::atomic<uint64_t> ns_{0};
  std::atomic<uint32_t> count_{0};
  std::atomic<uint64_t> head_ns_{0};
  std::atomic<int64_t> end_ns_{0};  // when all is expected to be done
};

}  // namespace prorata::client
