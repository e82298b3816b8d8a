#pragma once

// What decides who may run on one device: the agent's side of it sees only this, so that policies
// may be compared on the same ground. TimeSharing is the policy of prorata; the others are there
// to be compared with it.
//
// How to use: on every event, first Report what is known of every share that holds or drains, then
// say the event, then carry out what Decide answers, and call Decide again by `next_ns` at the
// latest. Times are nanoseconds on one clock that never goes back. Not thread-safe.

#include <cstdint>
#include <limits>
#include <vector>

#include "policy/entitlement.h"

namespace prorata::policy {

class LeasePolicy {
 public:
  using Key = uint64_t;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kContendedBacklogNs = 2'000'000;

  struct Lease {
    Key share = 0;
    bool open = false;
    bool contended = false;
  };
  struct Decisions {
    std::vector<Lease> changes;  // closings before openings
    int64_t next_ns = kNever;    // decide again by then
  };
  struct ShareState {
    bool open = false;
    bool wanting = false;
    bool passed_over = false;
    double entitled = 0;  // now, among those that take part (as if it did)
    double lag_ns = 0;
    bool together = false;  // open beside others, all of which are so, too
    bool gang = false;      // has its turns on all of its devices at the same time
  };

  LeasePolicy() = default;
  LeasePolicy(const LeasePolicy&) = delete;
  LeasePolicy& operator=(const LeasePolicy&) = delete;
  virtual ~LeasePolicy() = default;

  // `charged_total_ns` is where the share's counter of device time stands.
  virtual void Add(Key share, const ComputeTerms& terms, uint64_t charged_total_ns,
                   int64_t now_ns) = 0;
  virtual void Remove(Key share, int64_t now_ns) = 0;
  virtual void SetTerms(Key share, const ComputeTerms& terms, int64_t now_ns) = 0;

  // The share's counter of device time, and the estimated device time of what it launched and is
  // not done. A counter that goes back is taken as standing still.
  virtual void Report(Key share, uint64_t charged_total_ns, int64_t backlog_ns) = 0;

  // When what it launched should be done, as exactly as its members know it at this moment; for one
  // that is told of, `backlog_ns` above is that, too. Never told: `backlog_ns` may be older.
  virtual void ExpectEnd(Key /*share*/, int64_t /*end_ns*/) {}

  virtual void Wanted(Key share, int64_t now_ns) = 0;   // a launch waits for the closed lease
  virtual void Idle(Key share, int64_t now_ns) = 0;     // nothing queued or running or waiting
  virtual void Drained(Key share, int64_t now_ns) = 0;  // launched before the closing, and done
  // For the next Drained of it: that it was so at `drained_ns` already, if it is told late.
  virtual void DrainedSince(Key /*share*/, int64_t /*drained_ns*/) {}

  virtual Decisions Decide(int64_t now_ns) = 0;

  virtual std::vector<Key> Shares() const = 0;
  virtual ShareState State(Key share) const = 0;
  // Called back, and not known to have drained (passed over or not).
  virtual bool Draining(Key share) const = 0;
  // It drains, and nothing depends on when that is told, nor on when it is told that it wants to
  // run again: somebody else was let in meanwhile, and both are seen before its next turn can
  // begin.
  virtual bool DrainUnawaited(Key /*share*/) const { return false; }
  // It drains, and the next one is let in by when that is expected, not when it is told.
  virtual bool DrainForeseen(Key /*share*/) const { return false; }
  // The most fenced work that a member of it keeps queued while its lease is contended.
  virtual int64_t ContendedBacklogNs(Key share) const {
    static_cast<void>(share);
    return kContendedBacklogNs;
  }
  // The most that a member of any share may keep queued, alone or not.
  virtual int64_t MostBacklogNs() const { return kNever; }
  // --- Gangs (gangs.h): shares that run on several devices at the same time. A policy that knows
  // nothing of them gives such a share its turns as to everybody.
  enum class GangTurn : uint8_t {
    kNone,  // no gang
    kAway,  // is not let in, and is called back if it is; says that it has drained in SeeGang only
    kOn,    // is next before all others whenever it wants to run; called back, it is let in again
    kCatchUp,  // that, and keeps the device whoever waits
  };
  virtual void SetGang(Key share, GangTurn turn, int64_t now_ns) {
    static_cast<void>(share), static_cast<void>(turn), static_cast<void>(now_ns);
  }
  // Who has drained gives up the device.
  virtual void EndGangDrain(Key share, int64_t now_ns) {
    static_cast<void>(share), static_cast<void>(now_ns);
  }
  struct GangSeen {
    bool wanting = false;
    bool open = false;
    bool idle = false;
    bool draining = false;  // called back, and keeps the device from the next one
    bool drained = false;   // that, but it has nothing there any more
    bool passed_over = false;
    bool ready = false;    // it would be let in now, if it were for this device alone
    bool may = false;      // no limit and no priority is against letting it in now
    bool limited = false;  // has a limit, or the device a ceiling
    int64_t backlog_ns = 0;
  };
  virtual GangSeen SeeGang(Key share, int64_t now_ns) {
    static_cast<void>(share), static_cast<void>(now_ns);
    return {};
  }
  // Its own limit is what keeps it from running now, should it be closed and want to.
  virtual bool AtLimit(Key share) const {
    static_cast<void>(share);
    return false;
  }
};

}  // namespace prorata::policy
