#pragma once

// The helper's side of a device's lease: when to say "drained" and when "idle". Pure: one thread
// tells it what is seen, it answers what to send and when to look again.
//
//   closed:               as soon as nothing is outstanding, say kLeaseDrained for this sequence
//   open and contended:   after idle_report without work, say kLeaseIdle, once until work comes.
//                         Whoever waited for the lease has work, but needs a moment to wake: the
//                         time begins when the lease opens, and not while anybody still waits
//   open, not contended:  nothing to say

#include <cstdint>
#include <limits>

#include "protocol/limits_file.h"

namespace prorata::client {

class LeaseWatch {
 public:
  struct Seen {
    int64_t now_ns;
    uint32_t lease;        // the lease word
    bool outstanding;      // fenced work is not done yet, or a launch is just being made
    bool waiting;          // threads wait for the lease, or have not woken since it opened
    uint64_t unfenced_ns;  // estimate of work launched since the last fences
    uint64_t backlog_ns;   // estimate of all that is launched and not done, that included
    uint64_t launches;     // all launches so far
    int64_t idle_report_ns;
    int64_t expected_end_ns = std::numeric_limits<int64_t>::max();  // of what is fenced
    bool closely = false;     // the agent goes by how much is left, at any moment
    bool persistent = false;  // of what is outstanding, something hardly ends soon (run_watch.h)
    bool unknown = false;     // nor is it known how long something of it takes
    bool at_bound = false;    // a thread waits for a fence, and launches when that is done
    bool unawaited = false;   // nobody waits to hear that it has drained
    uint64_t unfenced_launches = 0;  // 0, too: when they are done is not to be reckoned
    int64_t unfenced_began_ns = 0;   // the first of those (of the last batch of them)
  };
  struct Act {
    bool drained = false;
    bool idle = false;
    uint32_t sequence = 0;
    int64_t done_ns = 0;  // drained: when that was so, as far as is known
    int64_t look_again_ns = 0;
    // Launches may move that look, for what they add is certain to be outstanding until a time that
    // they know; for so long at most, from now.
    bool may_be_moved = false;
    int64_t move_within_ns = kPutOffNs;
  };

  Act Step(const Seen& seen) {
    Act act;
    act.sequence = seen.lease >> protocol::kLeaseSequenceShift;
    // When the last fence was done is not known, only that it was not at the look before, or that
    // it was launched since. If that look was long ago, or some work is behind no fence, the time
    // without work begins now; or when all of it should have been done.
    const bool open = (seen.lease & protocol::kLeaseOpen) != 0;
    const bool seldom = open && seen.now_ns - last_look_ns_ > 2 * kOftenNs;
    const bool just_done =
        was_outstanding_ && !seen.outstanding && (seldom || seen.unfenced_ns > 0);
    const bool launched = !started_ || seen.launches != launches_;
    NoteFencedDone(seen, launched);
    if (just_done || launched) last_work_ns_ = seen.unfenced_ns > 0 ? seen.now_ns : fenced_done_ns_;
    if (seen.outstanding) last_work_ns_ = seen.now_ns;
    if (launched) launched_ns_ = seen.now_ns;
    if (launched || seen.outstanding) {
      launches_ = seen.launches;
      idle_said_ = false;
    }
    last_look_ns_ = seen.now_ns;
    was_outstanding_ = seen.outstanding;
    if (!started_ || seen.lease != lease_) {
      if ((seen.lease & ~lease_ & protocol::kLeaseOpen) != 0) last_waiting_ns_ = seen.now_ns;
      lease_ = seen.lease;
      changed_at_ns_ = seen.now_ns;
      drained_said_ = idle_said_ = false;
    }
    started_ = true;
    // Who waits for a fence launches, too, as soon as it has woken; but where kernels wait for
    // peers, those may be missing on another device for want of this one.
    const bool about_to_launch = seen.waiting || (seen.at_bound && !seen.closely);
    if (about_to_launch) last_waiting_ns_ = seen.now_ns;
    // No fence tells when unfenced work is done: it is given its estimated time. Since it was seen;
    // or, where nothing was launched between two looks, or nothing can be, since it began.
    const int64_t unfenced_ns = static_cast<int64_t>(seen.unfenced_ns);
    const int64_t unfenced_end_ns = Later(fenced_done_ns_, seen.unfenced_began_ns) + unfenced_ns;
    if ((seen.lease & protocol::kLeaseOpen) == 0) {
      const int64_t last_ns = seen.unfenced_launches != 0
                                  ? unfenced_ns / static_cast<int64_t>(seen.unfenced_launches)
                                  : unfenced_ns;
      const int64_t since_began_ns = Later(unfenced_end_ns, changed_at_ns_ + last_ns);
      const int64_t since_seen_ns = Later(last_work_ns_, changed_at_ns_) + unfenced_ns;
      const int64_t end_ns = seen.unfenced_launches != 0 && since_began_ns < since_seen_ns
                                 ? since_began_ns
                                 : since_seen_ns;
      act.drained = !drained_said_ && !seen.outstanding && seen.now_ns >= end_ns;
      drained_said_ |= act.drained;
      act.done_ns = seen.unfenced_ns == 0 && fenced_done_ns_ != 0 ? fenced_done_ns_ : seen.now_ns;
      act.look_again_ns = drained_said_ ? kSeldomNs : WhileDraining(seen);
      // Then there is nothing to see until the lease opens, and whoever waits for that knows.
      act.may_be_moved = drained_said_ && !seen.closely;
      act.move_within_ns = kSeldomNs;
    } else if ((seen.lease & protocol::kLeaseContended) != 0) {
      const int64_t report_ns = seen.idle_report_ns;
      int64_t end_ns = last_work_ns_ + unfenced_ns;
      if (seen.unfenced_launches != 0 && unfenced_end_ns < end_ns) {
        end_ns = Later(unfenced_end_ns, launched_ns_);
      }
      const int64_t due_ns = Later(end_ns, last_waiting_ns_) + report_ns - seen.now_ns;
      act.idle = !idle_said_ && !seen.outstanding && !about_to_launch && due_ns <= 0;
      idle_said_ |= act.idle;
      act.look_again_ns = idle_said_ ? kSeldomNs : WhileBusy(seen);
      act.may_be_moved = !idle_said_ && !seen.persistent && !seen.unknown && !seen.closely;
      if (!idle_said_ && report_ns / 2 > act.look_again_ns) act.look_again_ns = report_ns / 2;
      if (!idle_said_ && !seen.outstanding && !about_to_launch) {
        // Nothing but a launch keeps it from saying so then.
        act.look_again_ns = due_ns > kWhileBusyNs ? kWhileBusyNs : due_ns;
      }
    } else {
      act.look_again_ns = seen.outstanding ? kSometimesNs : kSeldomNs;
    }
    return act;
  }

  // It was said that nothing is queued or running, and nothing came since.
  bool quiet() const { return idle_said_ || drained_said_; }

  static constexpr int64_t kOftenNs = 100'000;
  static constexpr int64_t kWhileBusyNs = 500'000;
  static constexpr uint64_t kLittleNs = 600'000;
  static constexpr int64_t kWhileCertainNs = 2'000'000;
  static constexpr int64_t kSometimesNs = 5'000'000;
  static constexpr int64_t kSeldomNs = 20'000'000;
  // For so long at most a look is put off: it also sees whether the agent is silent. From a turn
  // to the next it is as long as without work.
  static constexpr int64_t kPutOffNs = 15'000'000;

 private:
  // While work is outstanding nothing is to be said; looks come closer as its end does, and leave
  // room for estimates that are too long. Each look is a wake-up, and a core's hundredth for each
  // program is what all of them may cost.
  static int64_t WhileDraining(const Seen& seen) {
    if (seen.persistent) return kSometimesNs;
    if (seen.unknown || seen.closely) return kOftenNs;
    // Nobody waits for it: by when it was expected to end is near enough.
    if (seen.unawaited) {
      return seen.backlog_ns > 1 ? Within(kWhileCertainNs, seen.backlog_ns + kOftenNs / 2)
                                 : 3 * kOftenNs;
    }
    return Within(kWhileCertainNs, seen.backlog_ns - seen.backlog_ns / 4);
  }
  static int64_t WhileBusy(const Seen& seen) {
    if (seen.persistent) return kSometimesNs;
    if (seen.unknown) return 2 * kOftenNs;
    // A thread that waits at the bound launches before the backlog ends, and then moves the look:
    // until then its program is certain not to be idle, however late the backlog ends.
    if (seen.at_bound && !seen.closely) {
      return Within(kWhileCertainNs, seen.backlog_ns + kWhileBusyNs);
    }
    if (seen.backlog_ns <= 1) return kOftenNs;  // later than expected
    // Little, whose end is known well: seen done after it, it is known that nothing came since.
    const auto idle_ns = static_cast<uint64_t>(seen.idle_report_ns);
    if (seen.backlog_ns <= kLittleNs && !seen.closely && seen.unfenced_ns == 0) {
      return Within(kWhileBusyNs, seen.backlog_ns + idle_ns);
    }
    return Within(kWhileBusyNs, seen.backlog_ns / 2);
  }
  // When the fenced work was done: by when it should have been, if that was since the last look.
  void NoteFencedDone(const Seen& seen, bool launched) {
    const bool between = seen.expected_end_ns > last_look_ns_ && seen.expected_end_ns < seen.now_ns;
    // Nothing was fenced since the last look, when all that was had been done.
    const bool none = launched && !was_outstanding_ && seen.expected_end_ns <= last_look_ns_;
    if (seen.outstanding) {
      fenced_done_ns_ = seen.now_ns;
    } else if ((was_outstanding_ || launched) && !(none && started_)) {
      fenced_done_ns_ = between ? seen.expected_end_ns : seen.now_ns;
    }
  }
  static int64_t Within(int64_t most_ns, uint64_t ns) {
    const auto wait_ns = static_cast<int64_t>(ns);
    return wait_ns < kOftenNs ? kOftenNs : wait_ns > most_ns ? most_ns : wait_ns;
  }
  static int64_t Later(int64_t a, int64_t b) { return a < b ? b : a; }

  bool started_ = false;
  bool was_outstanding_ = false;
  bool drained_said_ = false;
  bool idle_said_ = false;
  uint32_t lease_ = 0;
  uint64_t launches_ = 0;
  int64_t last_look_ns_ = 0;
  int64_t last_work_ns_ = 0;
  int64_t fenced_done_ns_ = 0;
  int64_t launched_ns_ = 0;  // when that was last seen
  int64_t last_waiting_ns_ = std::numeric_limits<int64_t>::min() / 2;
  int64_t changed_at_ns_ = 0;
};

}  // namespace prorata::client
