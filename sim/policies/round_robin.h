#pragma once

// Plain round robin, to compare TimeSharing with: those that want the device take equal slices, one
// after the other, whatever their requests, limits and weights say. A turn ends when its time is
// over and somebody waits, or when its holder reports that it is idle; the next begins when the
// last has drained, however long that takes. Not for use: nothing keeps a limit, and a holder that
// never drains stops everybody.

#include "policy/compute/lease_policy.h"

namespace prorata::policy {

class RoundRobin final : public LeasePolicy {
 public:
  static constexpr int64_t kQuantumNs = 10'000'000;  // as TimeSharing's

  void Add(Key share, const ComputeTerms& terms, const Work& work, int64_t now_ns) override;
  void Remove(Key share, int64_t now_ns) override;
  void SetTerms(Key, const ComputeTerms&, int64_t) override {}
  void Observe(Key share, const Work& work) override;
  void Wanted(Key share, int64_t now_ns) override;
  void Idle(Key share, int64_t now_ns) override;
  void Drained(Key share, int64_t since_ns, int64_t now_ns) override;
  Decisions Decide(int64_t now_ns) override;
  ShareState State(Key share) const override;

 private:
  struct Share {
    Key key = 0;
    bool open = false;
    bool draining = false;
    bool runnable = false;
    bool idle = false;  // reported, and nothing was seen of it since
    bool issued_open = false;
    bool issued_contended = false;
    uint64_t busy_total_ns = 0;
    int64_t opened_ns = 0;
  };
  Share* Find(Key key);
  const Share* Find(Key key) const;
  bool AnybodyElseWants(const Share& share) const;
  void OpenTheNext(int64_t now_ns);

  std::vector<Share> shares_;  // in the order of their slices
  size_t next_ = 0;            // whose slice is looked for first
};

}  // namespace prorata::policy
