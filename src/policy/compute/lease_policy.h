#pragma once

// What decides who may submit work to one device. The agent and the one-process simulation see only
// this, so that policies can be compared on the same programs. TimeSharing is prorata's policy.
//
// Use: on every event, Observe every share, say the event, carry out what Decide answers, and call
// Decide again at `next_ns` at the latest. Times are nanoseconds on one clock that never goes back.
// Not thread-safe.

#include <cstdint>
#include <limits>
#include <vector>

#include "policy/compute/entitlement.h"

namespace prorata::policy {

class LeasePolicy {
 public:
  using Key = uint64_t;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  // The most estimated device time that a member keeps submitted and unfinished while others may
  // want the device. 1 ms: a waking share waits for that much. Doubled, wakers wait for twice as
  // long; halved, programs that launch in bursts leave gaps.
  static constexpr int64_t kBacklogNs = 1'000'000;
  // A member under a contended lease says that it is idle when it has been for so long. Shorter, a
  // program that waits for each kernel loses its lease every time; longer, pauses stay unused.
  static constexpr int64_t kIdleReportNs = 200'000;

  struct Lease {
    Key share = 0;
    bool open = false;
    bool contended = false;  // members bound their backlog, and report when they are idle
    uint32_t launches = 0;   // not 0: open for so many of each member, and no more
  };
  struct Decisions {
    std::vector<Lease> changes;  // revoked leases before granted ones
    int64_t next_ns = kNever;
  };

  // What the members of a share publish of their work. None of it is charged while somebody waits.
  struct Work {
    uint64_t busy_total_ns = 0;      // their kernels ran for so long, by their own estimate
    uint64_t occupied_total_ns = 0;  // they were not proven idle for so long
    int64_t backlog_ns = 0;          // estimated, submitted and unfinished
    int64_t end_ns = kNever;         // when that should be done; kNever: not known
    uint32_t contexts = 1;           // that have unfinished work, or may have
    bool blocked = false;            // all of it is proven not to have begun
    int64_t away_ns = kNever;  // none of them runs from then on, unless they say something by then
    bool stopped = false;  // all seem to be stopped: nobody says anything; `blocked` is set, too
  };

  enum class Phase : uint8_t { kIdle, kRunnable, kRunning, kDraining, kStalled };
  struct ShareState {
    Phase phase = Phase::kIdle;
    double entitled = 0;  // now, among the active shares (as if it were one)
    bool active = true;   // it is one of them: it wants the device
    double lag_ns = 0;
    double charged_ns = 0;  // since it was added
    bool waits = false;     // a launch waits for the lease
    bool co_running = false;
    bool in_slices =
        false;  // others have the device meanwhile: it or another stalls, or one has yet to drain
    bool gang = false;
    bool stopped = false;             // as Work::stopped
    int64_t backlog_ns = kBacklogNs;  // its bound while its lease is contended
    int64_t idle_report_ns = kIdleReportNs;
    bool at_limit = false;       // its limit, or the ceiling, keeps it from running
    int64_t limited_ns = 0;      // that, for so long still
    double limit_tokens_ns = 0;  // left of the bucket of its limit
    bool idle = false;           // RUNNING: its members said that they have nothing to run
    bool closed = false;         // RUNNING: gathers, or may make a few launches (gangs.h)
  };

  LeasePolicy() = default;
  LeasePolicy(const LeasePolicy&) = delete;
  LeasePolicy& operator=(const LeasePolicy&) = delete;
  virtual ~LeasePolicy() = default;

  virtual void Add(Key share, const ComputeTerms& terms, const Work& work, int64_t now_ns) = 0;
  virtual void Remove(Key share, int64_t now_ns) = 0;
  // Right after Add: what was left of the bucket of its limit when it was last decided on. It may
  // be another agent that did.
  virtual void ResumeLimit(Key, double /*tokens_ns*/) {}
  virtual void SetTerms(Key share, const ComputeTerms& terms, int64_t now_ns) = 0;
  virtual void Observe(Key share, const Work& work) = 0;
  virtual void Wanted(Key share, int64_t now_ns) = 0;  // a launch waits for the closed lease
  // A hint: nothing is submitted or waits. Whether that is true is known when it has drained.
  virtual void Idle(Key share, int64_t now_ns) = 0;
  // Everything submitted under the closed lease was done by `since_ns`.
  virtual void Drained(Key share, int64_t since_ns, int64_t now_ns) = 0;
  // The device itself says that it had a share's context at `at_ns`, or somewhere in `within_ns`
  // before that, which stands for `ran_ns` of its time. A share that held no lease then, and had
  // drained, is charged for it.
  struct Look {
    Key share = 0;
    double ran_ns = 0;
    int64_t at_ns = 0;
    int64_t within_ns = 0;
  };
  struct Correction {
    Key share = 0;
    double charged_ns = 0;  // more than before; less, where it is negative
  };
  virtual std::vector<Correction> Audit(const std::vector<Look>&, int64_t) { return {}; }
  virtual Decisions Decide(int64_t now_ns) = 0;
  virtual ShareState State(Key share) const = 0;
  // After Decide: null, or which invariant does not hold. For tests.
  virtual const char* CheckInvariants() const { return nullptr; }

  // --- Gangs (gangs.h): shares that run on several devices at the same time. A policy that does
  // not know them treats such a share as any other.
  enum class GangSlice : uint8_t {
    kNone,     // no gang
    kAway,     // not granted a lease; its drain is kept open until EndGangDrain
    kGather,   // dispatched before all others, and pays, but may not launch yet
    kOn,       // dispatched before all others whenever it is runnable
    kCatchUp,  // that, for a few launches, and it keeps the device whoever waits
  };
  struct GangSeen {
    bool runnable = false;
    bool open = false;
    bool idle = false;
    bool draining = false;  // revoked, and keeps the device from the next one
    bool drained = false;   // that, but nothing of it is left there
    bool stalled = false;
    bool blocked = false;  // all that it has out stands behind waits, and has not begun
    bool ready = false;    // it is next here; who runs would yield, or has had more than it is due
    bool ahead = false;    // that, or only gangs are before it
    bool owes = false;     // another there so much that this one would have it back at once
    bool may = false;      // no limit and no priority is against dispatching it now
    int64_t limited_ns = 0;  // its limit, or the ceiling, keeps it from running for so long still
    int64_t backlog_ns = 0;
    double lag_ns = 0;      // here
    uint64_t launches = 0;  // of the member there that made most; only how they grow means anything
    int64_t free_in_ns = 0;  // it could be dispatched then, were others revoked now
  };
  // `launches`, for kCatchUp: what each member may launch; 0: nothing, and what drains has as long
  // again for it.
  virtual void SetGang(Key, GangSlice, int64_t /*now_ns*/, uint32_t /*launches*/) {}
  // Nothing of it runs on any of its devices: it has drained, or stalls if what is left is blocked.
  virtual void EndGangDrain(Key, int64_t) {}
  virtual GangSeen SeeGang(Key, int64_t) { return {}; }
  // Nobody has the device, and somebody could: what was observed since Decide, or time, lets it.
  virtual bool Idles() const { return false; }
};

}  // namespace prorata::policy
