#include "sim/policies/round_robin.h"

#include <algorithm>

namespace prorata::policy {

void RoundRobin::Add(Key key, const ComputeTerms&, const Work& work, int64_t) {
  Share& share = shares_.emplace_back();
  share.key = key;
  share.busy_total_ns = work.busy_total_ns;
}

void RoundRobin::Remove(Key key, int64_t) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i].key != key) continue;
    shares_.erase(shares_.begin() + static_cast<ptrdiff_t>(i));
    if (i < next_) --next_;
    return;
  }
}

void RoundRobin::Observe(Key key, const Work& work) {
  Share* share = Find(key);
  if (share == nullptr) return;
  if (work.busy_total_ns > share->busy_total_ns || work.backlog_ns > 0) share->idle = false;
  share->busy_total_ns = std::max(share->busy_total_ns, work.busy_total_ns);
}

void RoundRobin::Wanted(Key key, int64_t) {
  if (Share* share = Find(key); share != nullptr && !share->open) share->runnable = true;
}

void RoundRobin::Idle(Key key, int64_t) {
  if (Share* share = Find(key); share != nullptr && share->open) share->idle = true;
}

void RoundRobin::Drained(Key key, int64_t, int64_t) {
  if (Share* share = Find(key); share != nullptr) share->draining = false;
}

RoundRobin::Decisions RoundRobin::Decide(int64_t now_ns) {
  for (Share& share : shares_) {
    if (!share.open || !AnybodyElseWants(share)) continue;
    if (!share.idle && now_ns - share.opened_ns < kQuantumNs) continue;
    share.open = false;
    share.draining = true;
  }
  const bool taken = std::any_of(shares_.begin(), shares_.end(),
                                 [](const Share& share) { return share.open || share.draining; });
  if (!taken) OpenTheNext(now_ns);
  Decisions decisions;
  for (const bool opens : {false, true}) {
    for (Share& share : shares_) {
      const bool contended = share.open && shares_.size() > 1;
      if (share.open != opens) continue;
      if (share.open && AnybodyElseWants(share)) decisions.next_ns = share.opened_ns + kQuantumNs;
      if (share.open == share.issued_open && contended == share.issued_contended) continue;
      decisions.changes.push_back({share.key, share.open, contended});
      share.issued_open = share.open;
      share.issued_contended = contended;
    }
  }
  return decisions;
}

void RoundRobin::OpenTheNext(int64_t now_ns) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    const size_t at = (next_ + i) % shares_.size();
    Share& share = shares_[at];
    if (!share.runnable) continue;
    share.open = true;
    share.runnable = share.idle = false;
    share.opened_ns = now_ns;
    next_ = (at + 1) % shares_.size();
    return;
  }
}

bool RoundRobin::AnybodyElseWants(const Share& share) const {
  return std::any_of(shares_.begin(), shares_.end(),
                     [&](const Share& other) { return &other != &share && other.runnable; });
}

RoundRobin::ShareState RoundRobin::State(Key key) const {
  ShareState state;
  if (const Share* share = Find(key)) {
    state.phase = share->open       ? Phase::kRunning
                  : share->draining ? Phase::kDraining
                  : share->runnable ? Phase::kRunnable
                                    : Phase::kIdle;
    state.waits = share->runnable;
    state.charged_ns = static_cast<double>(share->busy_total_ns);
    state.entitled = 1.0 / static_cast<double>(shares_.size());
  }
  return state;
}

RoundRobin::Share* RoundRobin::Find(Key key) {
  return const_cast<Share*>(static_cast<const RoundRobin*>(this)->Find(key));
}

const RoundRobin::Share* RoundRobin::Find(Key key) const {
  const auto found = std::find_if(shares_.begin(), shares_.end(),
                                  [key](const Share& share) { return share.key == key; });
  return found == shares_.end() ? nullptr : &*found;
}

}  // namespace prorata::policy
