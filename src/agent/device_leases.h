#pragma once

// The agent's decisions on one device: a policy::LeasePolicy decides, this tells it what is to be
// seen and writes the lease words. Messages and time in, changed leases and a deadline out; no
// clock, timer or socket (leases.h adds them; the one-process simulation has its own).
//
// What a share is doing is read from its members' usage memory whenever something happens (a
// message, a deadline, the tick): messages say that there is something to see, and a lost or false
// one costs at most a deadline. Only `idle` and `drained` need the sequence of the lease word, for
// they are true of one lease only. Not thread-safe.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent/share_time.h"
#include "policy/time_sharing.h"

namespace prorata::agent {

class DeviceLeases {
 public:
  using Key = uint64_t;
  static constexpr int64_t kNever = policy::LeasePolicy::kNever;

  struct Change {
    Key share = 0;
    uint32_t sequence = 0;
  };
  struct Outcome {
    // Lease words that were written: wake who looks at them, tell whoever does not (MindsLease).
    std::vector<Change> changes;
    int64_t next_ns = kNever;  // Touch again by then
  };

  explicit DeviceLeases(const policy::TimeSharingOptions& options = {})
      : DeviceLeases(std::make_unique<policy::TimeSharing>(options)) {}
  explicit DeviceLeases(std::unique_ptr<policy::LeasePolicy> sharing)
      : sharing_(std::move(sharing)) {}

  // `share` must stay where it is until Remove. An adopted share may still have its lease from the
  // last agent: it begins anew, closed; who waits or runs says so when it has joined again.
  Outcome Add(Key key, ShareTime& share, const policy::ComputeTerms& terms, int64_t now_ns);
  Outcome Remove(Key key, int64_t now_ns);
  Outcome SetTerms(Key key, const policy::ComputeTerms& terms, int64_t now_ns);

  // The agent itself was silent until now (it was stopped, say), and members kept their own local
  // rules: what they used meanwhile is nobody's debt, and no lease says anything any more. All
  // begins anew, as under a new agent.
  Outcome BeginAnew(int64_t now_ns);

  // Something may have changed: looks at everything, and decides.
  Outcome Touch(int64_t now_ns);
  // A change of this share's lease need not be told to this member: it sees it soon enough.
  bool MindsLease(Key key, uint32_t slot, int64_t now_ns) const;

  // Each tenth of a second: remembers the figures for Lately.
  void Sample(int64_t now_ns);
  // A share in about the last second, as parts from 0 to 1.
  struct Recent {
    double achieved = 0;  // of the device time of all shares
    // Of the time that passed: had the device; was held back for others, by its own limit; was
    // passed over.
    double busy = 0;
    double waiting = 0;
    double at_limit = 0;
    double undrained = 0;
  };
  std::optional<Recent> Lately(Key key, int64_t now_ns) const;  // empty: not known yet
  // The part of the time in which the shares together used the device; those that run at once each
  // count their own, so that 1 is also the answer for more.
  double Busy(int64_t now_ns) const;

  policy::LeasePolicy::ShareState State(Key key) const { return sharing_->State(key); }
  bool empty() const { return shares_.empty(); }
  // For GangLeases: what it is told takes effect with the next Touch.
  policy::LeasePolicy& sharing() { return *sharing_; }

 private:
  // What keeps a share from running, between two looks at it.
  enum class Held : uint8_t { kNot, kForTurn, kByLimit, kUndrained };
  struct HeldTimes {
    Held now = Held::kNot;
    int64_t turn_ns = 0;
    int64_t limit_ns = 0;
    int64_t undrained_ns = 0;
  };
  struct Counts {
    uint64_t charged_ns = 0;
    HeldTimes held;
  };
  struct Moment {
    int64_t when_ns = 0;
    std::map<Key, Counts> shares;
  };
  void TellWhatIsSeen(int64_t now_ns);
  void BoundBacklogs();
  void NoteWhatIsHeld(int64_t now_ns);
  Held WhatHolds(Key key, const ShareTime& share) const;
  bool HasItsLimit(Key key) const;
  bool IsKnownToWait(Key key) const;
  uint64_t ChargedSince(const Moment& moment) const;

  std::unique_ptr<policy::LeasePolicy> sharing_;
  std::map<Key, ShareTime*> shares_;
  std::map<Key, HeldTimes> held_;
  int64_t noted_ns_ = 0;
  std::map<Key, policy::ComputeTerms> terms_;
  std::deque<Moment> moments_;
};

}  // namespace prorata::agent
