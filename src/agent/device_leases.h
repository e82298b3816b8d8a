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
    std::vector<Change> changes;  // lease words that were written: wake and tell who looks at them
    int64_t next_ns = kNever;     // Touch again by then
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

  // Something may have changed: looks at everything, and decides.
  Outcome Touch(int64_t now_ns);

  // Each tenth of a second: remembers the device times for Achieved.
  void Sample(int64_t now_ns);
  // Its part of the device time of all shares in about the last second; empty: not known yet.
  std::optional<double> Achieved(Key key) const;

  policy::LeasePolicy::ShareState State(Key key) const { return sharing_->State(key); }
  bool empty() const { return shares_.empty(); }

 private:
  struct Moment {
    int64_t when_ns = 0;
    std::map<Key, uint64_t> charged_ns;
  };
  void TellWhatIsSeen(int64_t now_ns);

  std::unique_ptr<policy::LeasePolicy> sharing_;
  std::map<Key, ShareTime*> shares_;
  std::deque<Moment> moments_;
};

}  // namespace prorata::agent
