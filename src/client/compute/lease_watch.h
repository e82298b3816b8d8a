#pragma once

// The helper's side of a device's lease: when to report "drained" and when "idle", and when to look
// again. Pure: one thread says what it sees.
//
//   closed:               as soon as the member is proven idle, kLeaseDrained for this sequence
//   open and contended:   proven idle, and idle_report without work since, kLeaseIdle: once until
//                         work comes. Whoever waited for the lease has work, but needs a moment to
//                         wake: the time begins when the lease opens, and not while a thread waits
//   open, not contended:  nothing to report
//
// While all work stands behind waits others could use the device: that is reported once it has
// lasted for idle_report, under a closed lease, too: the share is charged until then. Released
// while the lease is closed it runs outside of it: that is reported at once, too. All are
// kLeaseIdle for sequence 0 (`poll`).

#include <cstdint>
#include <limits>

#include "shm/limits_file.h"

namespace prorata::client {

class LeaseWatch {
 public:
  struct Seen {
    int64_t now_ns = 0;
    uint32_t lease = 0;       // the lease word
    bool busy = false;        // not proven idle
    bool about_to = false;    // a thread waits, or is launching
    bool at_bound = false;    // one waits for the backlog to fall below its bound
    bool open = false;        // something is launched that no fence is behind
    bool persistent = false;  // of what is outstanding, something hardly ends soon (run_watch.h)
    bool blocked = false;     // all that is outstanding is known not to have begun
    bool erratic = false;     // it may be done long before its end is expected
    bool failsafe = false;
    int64_t last_work_ns = 0;  // the last submission or its proof, whichever is later
    int64_t end_ns = 0;        // when all should be done
    uint64_t batches = 0;      // begun so far
    int64_t idle_report_ns = 0;
  };
  struct Act {
    bool drained = false;
    bool idle = false;
    bool blocked = false;  // what to publish: under an open lease not before it has lasted
    bool poll = false;     // blocked, or under a closed lease not any more
    uint32_t sequence = 0;
    int64_t poll_again_ns = 0;
  };

  Act Step(const Seen& seen) {
    Act act;
    act.sequence = seen.lease >> shm::kLeaseSequenceShift;
    if (!started_ || seen.lease != lease_) {
      if (!started_ || (seen.lease & ~lease_ & shm::kLeaseOpen) != 0) {
        last_waiting_ns_ = seen.now_ns;
      }
      lease_ = seen.lease;
      drained_reported_ = idle_reported_ = false;
    }
    started_ = true;
    if (seen.batches != batches_ || seen.busy) idle_reported_ = false;
    batches_ = seen.batches;
    if (seen.about_to) last_waiting_ns_ = seen.now_ns;
    const bool open = (seen.lease & shm::kLeaseOpen) != 0;
    const int64_t due_ns = Later(seen.last_work_ns, last_waiting_ns_) + seen.idle_report_ns;
    // A program may have such work all the time, and synchronise with other work meanwhile.
    act.blocked = seen.blocked && (!open || seen.now_ns >= due_ns);
    if (!act.blocked) {
      act.poll = blocked_ && !open;
      blocked_told_ = false;
    } else if (!blocked_) {
      blocked_since_ns_ = seen.now_ns;
    }
    blocked_ = act.blocked;
    // Where nobody waits for an open lease nobody need know.
    const bool matters = !open || (seen.lease & shm::kLeaseContended) != 0;
    const int64_t told_ns = open ? seen.now_ns : blocked_since_ns_ + seen.idle_report_ns;
    if (act.blocked && matters && !blocked_told_ && seen.now_ns >= told_ns) {
      act.poll = blocked_told_ = true;
    }
    if ((seen.lease & shm::kLeaseOpen) == 0) {
      act.drained = !drained_reported_ && !seen.busy;
      drained_reported_ |= act.drained;
      act.poll_again_ns = drained_reported_ ? kIdlePollNs : AtPollInterval(seen, 0);
    } else if ((seen.lease & shm::kLeaseContended) != 0) {
      act.idle = !idle_reported_ && !seen.busy && !seen.about_to && seen.now_ns >= due_ns;
      if (act.idle) reported_ns_ = seen.now_ns;
      idle_reported_ |= act.idle;
      if (idle_reported_) {
        // The agent closes the lease, or it has a reason not to; whether work has come is seen
        // here.
        act.poll_again_ns = Within(seen.now_ns - reported_ns_, kIdleNs, kIdlePollNs);
      } else if (seen.busy && seen.at_bound && was_at_bound_) {
        act.poll_again_ns = kBusyNs;  // it adds to what there is before that ends
      } else if (seen.busy) {
        act.poll_again_ns = AtPollInterval(seen, seen.idle_report_ns);
      } else {
        act.poll_again_ns = Within(due_ns - seen.now_ns, kMinNs, kBusyNs);
      }
    } else {
      act.poll_again_ns = seen.busy ? kSometimesNs : kIdlePollNs;
    }
    was_at_bound_ = seen.at_bound;
    if (seen.failsafe && seen.busy) act.poll_again_ns = Sooner(act.poll_again_ns, kFailsafeNs);
    return act;
  }

  // The agent knows, or will, that nothing is outstanding.
  bool quiet() const { return idle_reported_ || drained_reported_; }

  static constexpr int64_t kMinNs = 50'000;
  static constexpr int64_t kOverdueNs = 100'000;
  static constexpr int64_t kMaxOverdueNs = 200'000;
  static constexpr int64_t kBlockedNs = 500'000;
  static constexpr int64_t kIdleNs = 500'000;
  static constexpr int64_t kBusyNs = 2'000'000;
  static constexpr int64_t kFailsafeNs = 1'000'000;
  static constexpr int64_t kSometimesNs = 5'000'000;
  static constexpr int64_t kIdlePollNs = 20'000'000;

 private:
  // There is nothing to be seen before the end; after it, more seldom the later it is.
  static int64_t AtPollInterval(const Seen& seen, int64_t after_ns) {
    if (seen.persistent) return kSometimesNs;
    if (seen.blocked) return kBlockedNs;
    const int64_t left_ns = seen.end_ns - seen.now_ns;
    const int64_t latest_ns = seen.erratic ? kMaxOverdueNs : kBusyNs;
    if (left_ns > 0 && !seen.open) return Within(left_ns + after_ns, kMinNs, latest_ns);
    const int64_t most_ns = after_ns == 0 ? kMaxOverdueNs : kFailsafeNs;
    return Within(left_ns > 0 ? left_ns : -left_ns / 8, kOverdueNs, most_ns);
  }
  static int64_t Within(int64_t ns, int64_t least_ns, int64_t most_ns) {
    return ns < least_ns ? least_ns : ns > most_ns ? most_ns : ns;
  }
  static int64_t Later(int64_t a, int64_t b) { return a < b ? b : a; }
  static int64_t Sooner(int64_t a, int64_t b) { return a < b ? a : b; }

  bool started_ = false;
  bool drained_reported_ = false;
  bool idle_reported_ = false;
  bool blocked_ = false;
  bool blocked_told_ = false;
  bool was_at_bound_ = false;
  uint32_t lease_ = 0;
  uint64_t batches_ = 0;
  int64_t reported_ns_ = 0;
  int64_t blocked_since_ns_ = 0;
  int64_t last_waiting_ns_ = std::numeric_limits<int64_t>::min() / 2;
};

}  // namespace prorata::client
