#include "policy/memory/memory_admission.h"

#include <algorithm>
#include <limits>

namespace prorata::policy {
namespace {

constexpr size_t kNobody = std::numeric_limits<size_t>::max();

}  // namespace

MemoryAdmission::MemoryAdmission(std::vector<uint64_t> capacity_bytes, const Options& options)
    : capacity_(std::move(capacity_bytes)), options_(options), random_(options.seed) {}

MemoryAdmission::Share MemoryAdmission::Made(const Terms& terms,
                                             std::span<const uint64_t> held) const {
  Share share{terms, std::vector<uint64_t>(capacity_.size(), 0)};
  share.terms.request_bytes.resize(capacity_.size(), 0);
  std::copy(held.begin(), held.end(), share.held.begin());
  return share;
}

// What is neither held nor set aside on each device; below 0 where a capacity shrank.
std::vector<int64_t> MemoryAdmission::Free() const {
  std::vector<int64_t> free(capacity_.begin(), capacity_.end());
  for (const auto& [key, share] : shares_) {
    for (size_t device = 0; device < free.size(); ++device) {
      free[device] -= static_cast<int64_t>(share.taken(device));
    }
  }
  return free;
}

// The most that can ever be borrowed of each device.
std::vector<int64_t> MemoryAdmission::Reach() const {
  std::vector<int64_t> reach(capacity_.begin(), capacity_.end());
  for (const auto& [key, share] : shares_) {
    for (size_t device = 0; device < reach.size(); ++device) {
      reach[device] -= static_cast<int64_t>(share.request(device));
    }
  }
  return reach;
}

// Whether no share that waits was promised more than it can ever be given.
bool MemoryAdmission::WithinReach() const {
  const std::vector<int64_t> reach = Reach();
  return std::ranges::all_of(shares_, [&](const auto& entry) {
    const Share& share = entry.second;
    for (size_t device = 0; device < reach.size(); ++device) {
      const auto most = static_cast<int64_t>(share.most(device));
      if (share.terms.on_full == OnFull::kWait && most > 0 && most > reach[device]) return false;
    }
    return true;
  });
}

// Whether a share could end with what is free: one that never waits always can.
bool MemoryAdmission::Finishable(const Share& share, const std::vector<int64_t>& free,
                                 const std::vector<int64_t>& reach) {
  if (share.terms.on_full == OnFull::kFail) return true;
  for (size_t device = 0; device < free.size(); ++device) {
    const auto most = static_cast<int64_t>(share.most(device));
    const auto need = std::min(most, reach[device]) - static_cast<int64_t>(share.borrowed(device));
    if (need > 0 && need > free[device]) return false;
  }
  return true;
}

bool MemoryAdmission::SafeFrom(std::vector<int64_t> free) const {
  const std::vector<int64_t> reach = Reach();
  std::vector<const Share*> left;
  for (const auto& [key, share] : shares_) left.push_back(&share);
  while (!left.empty()) {
    const auto ended = std::partition(left.begin(), left.end(), [&](const Share* share) {
      return !Finishable(*share, free, reach);
    });
    if (ended == left.end()) return false;
    for (auto share = ended; share != left.end(); ++share) {
      for (size_t device = 0; device < free.size(); ++device) {
        free[device] += static_cast<int64_t>((*share)->borrowed(device));
      }
    }
    left.erase(ended, left.end());
  }
  return true;
}

bool MemoryAdmission::Safe() const { return SafeFrom(Free()); }

bool MemoryAdmission::Add(Key key, const Terms& terms, std::span<const uint64_t> held) {
  if (!shares_.try_emplace(key, Made(terms, held)).second) return false;
  const std::vector<int64_t> free = Free();
  const bool fits = std::ranges::all_of(free, [](int64_t bytes) { return bytes >= 0; });
  // What an agent before us left is taken as it is: its programs run.
  if (!held.empty() || (fits && WithinReach() && SafeFrom(free))) return true;
  shares_.erase(key);
  return false;
}

void MemoryAdmission::Remove(Key key) {
  shares_.erase(key);
  std::erase_if(queue_, [&](const Waiter& waiter) { return waiter.share == key; });
}

bool MemoryAdmission::SetTerms(Key key, const Terms& terms) {
  const auto found = shares_.find(key);
  if (found == shares_.end()) return false;
  const bool was_safe = Safe(), was_within_reach = WithinReach();
  const Share before = found->second;
  Share& share = found->second;
  share = Made(terms, before.held);
  const std::vector<int64_t> free = Free();
  bool fits = true;  // what more is set aside
  for (size_t device = 0; device < free.size(); ++device) {
    fits &= free[device] >= 0 || share.taken(device) <= before.taken(device);
  }
  if (!fits || (was_safe && !SafeFrom(free)) || (was_within_reach && !WithinReach())) {
    share = before;
    return false;
  }
  std::erase_if(queue_, [&](const Waiter& waiter) {
    return waiter.share == key && waiter.bytes > terms.limit_bytes[waiter.device];
  });
  return true;
}

// Whether the state stays safe when the share comes to hold `bytes`, more than it has.
bool MemoryAdmission::Fits(const Share& share, size_t device, uint64_t bytes) const {
  const auto more = static_cast<int64_t>(bytes - share.taken(device));
  std::vector<int64_t> free = Free();
  if (free[device] < more) return false;
  // The share itself may be the one that can end first: what it is given comes back with it.
  if (share.terms.on_full == OnFull::kFail) return true;
  Share& changed = const_cast<Share&>(share);
  const uint64_t held = share.held[device];
  changed.held[device] = bytes;
  free[device] -= more;
  const bool safe = SafeFrom(std::move(free));
  changed.held[device] = held;
  return safe;
}

bool MemoryAdmission::Leads(const Waiter& first, int64_t now_ns) const {
  const bool long_enough = first.bypasses >= options_.most_bypasses ||
                           now_ns - first.since_ns >= options_.longest_bypass_ns;
  const auto beyond = static_cast<int64_t>(first.bytes) -
                      static_cast<int64_t>(shares_.at(first.share).request(first.device));
  return options_.order == WaitOrder::kFifo && long_enough && beyond <= Reach()[first.device];
}

// Whether a request may be served before the first in line.
bool MemoryAdmission::MayPass(const Share& share, Ticket ticket, int64_t now_ns) const {
  if (queue_.empty() || queue_.front().ticket == ticket || !Leads(queue_.front(), now_ns)) {
    return true;
  }
  if (share.terms.on_full != OnFull::kWait) return false;
  for (size_t device = 0; device < capacity_.size(); ++device) {
    if (share.borrowed(device) > 0) return true;
  }
  return false;
}

// Up to a multiple of the chunk where that is safe too; the request was found to fit.
void MemoryAdmission::Give(Share& share, size_t device, uint64_t bytes) {
  const uint64_t chunk = options_.chunk_bytes;
  if (chunk > 1 && queue_.empty()) {
    const uint64_t roomy =
        std::min(share.terms.limit_bytes[device], (bytes + chunk - 1) / chunk * chunk);
    if (roomy > bytes && Fits(share, device, roomy)) bytes = roomy;
  }
  share.held[device] = bytes;
}

void MemoryAdmission::CountBypass(Ticket passing) {
  for (Waiter& waiter : queue_) {
    if (passing == 0 || waiter.ticket < passing) ++waiter.bypasses;
  }
}

MemoryAdmission::Verdict MemoryAdmission::Request(Key key, Ticket ticket, size_t device,
                                                  uint64_t bytes, int64_t now_ns) {
  const auto found = shares_.find(key);
  if (found == shares_.end() || bytes > found->second.terms.limit_bytes[device]) {
    return Verdict::kOverLimit;
  }
  Share& share = found->second;
  if (bytes <= share.taken(device)) {
    share.held[device] = std::max(share.held[device], bytes);
    return Verdict::kGiven;
  }
  // A share's own earlier requests go first: else its threads would overtake each other for ever.
  const bool own_waits =
      std::ranges::any_of(queue_, [&](const Waiter& waiter) { return waiter.share == key; });
  if (!own_waits && MayPass(share, ticket, now_ns) && Fits(share, device, bytes)) {
    Give(share, device, bytes);
    CountBypass(0);
    return Verdict::kGiven;
  }
  if (share.terms.on_full == OnFull::kFail) return Verdict::kFull;
  queue_.push_back({ticket, key, device, bytes, now_ns});
  return Verdict::kWaits;
}

bool MemoryAdmission::Cancel(Ticket ticket) {
  return std::erase_if(queue_, [&](const Waiter& waiter) { return waiter.ticket == ticket; }) != 0;
}

bool MemoryAdmission::Amend(Ticket ticket, uint64_t bytes) {
  const auto found = std::ranges::find(queue_, ticket, &Waiter::ticket);
  if (found == queue_.end() || bytes > limit(found->share, found->device)) return false;
  found->bytes = bytes;
  return true;
}

void MemoryAdmission::GiveBack(Key key, size_t device, uint64_t bytes) {
  const auto found = shares_.find(key);
  if (found == shares_.end()) return;
  uint64_t& held = found->second.held[device];
  held = std::min(held, bytes);
}

void MemoryAdmission::Acknowledge(Key key, size_t device, uint64_t bytes) {
  const auto found = shares_.find(key);
  if (found == shares_.end()) return;
  uint64_t& held = found->second.held[device];
  held = std::max(held, bytes);
}

// The place in the queue of the request to serve now.
size_t MemoryAdmission::Next(int64_t now_ns) {
  const std::vector<int64_t> free = Free();
  std::vector<size_t> possible;
  for (size_t i = 0; i < queue_.size(); ++i) {
    const Waiter& waiter = queue_[i];
    const Share& share = shares_.at(waiter.share);
    // It has so much by now: a member of it was given enough, or its request was raised.
    if (waiter.bytes <= share.taken(waiter.device)) return i;
    if (!MayPass(share, waiter.ticket, now_ns) || !Fits(share, waiter.device, waiter.bytes)) {
      continue;
    }
    if (options_.order == WaitOrder::kFifo && i == 0 && Leads(waiter, now_ns)) return i;
    possible.push_back(i);
  }
  if (possible.empty()) return kNobody;
  if (options_.order == WaitOrder::kRecent) return possible.back();
  if (options_.order == WaitOrder::kRandom) return possible[random_() % possible.size()];
  // Best fit, and kFifo while nobody leads: the share that lacks nearest to what there is. What
  // they ask for fits.
  return *std::ranges::max_element(possible, {}, [&](size_t i) {
    const Share& share = shares_.at(queue_[i].share);
    const size_t device = queue_[i].device;
    const auto lacks = static_cast<int64_t>(share.terms.limit_bytes[device] - share.taken(device));
    return lacks <= free[device] ? lacks : free[device] - lacks;
  });
}

std::vector<MemoryAdmission::Ticket> MemoryAdmission::Decide(int64_t now_ns) {
  std::vector<Ticket> served;
  for (;;) {
    const size_t next = Next(now_ns);
    if (next == kNobody) return served;
    const Waiter waiter = queue_[next];
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(next));
    Share& share = shares_.at(waiter.share);
    if (waiter.bytes > share.taken(waiter.device)) CountBypass(waiter.ticket);
    share.held[waiter.device] = std::max(share.held[waiter.device], waiter.bytes);
    served.push_back(waiter.ticket);
  }
}

uint64_t MemoryAdmission::held(Key key, size_t device) const {
  const auto found = shares_.find(key);
  if (found == shares_.end()) return 0;
  return found->second.taken(device);
}

uint64_t MemoryAdmission::limit(Key key, size_t device) const {
  const auto found = shares_.find(key);
  return found == shares_.end() ? 0 : found->second.terms.limit_bytes[device];
}

uint64_t MemoryAdmission::free_bytes(size_t device) const {
  return static_cast<uint64_t>(std::max<int64_t>(0, Free()[device]));
}

uint64_t MemoryAdmission::borrowed_bytes(size_t device) const {
  uint64_t sum = 0;
  for (const auto& [key, share] : shares_) sum += share.borrowed(device);
  return sum;
}

bool MemoryAdmission::AnyMayBorrow(size_t device) const {
  return std::ranges::any_of(shares_,
                             [device](const auto& entry) { return entry.second.most(device) > 0; });
}

}  // namespace prorata::policy
