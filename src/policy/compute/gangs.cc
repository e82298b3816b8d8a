#include "policy/compute/gangs.h"

#include <algorithm>
#include <limits>

namespace prorata::policy {
namespace {

// Four slices: a gang that its devices do not agree on for so long is put first.
constexpr int64_t kPatienceNs = 52'000'000;
// A gang that has been drained on one device, and on the others has had nothing that became less,
// for so long: a peer is missing. Members say how far they are each tenth of a millisecond, and
// that they have drained within a quarter.
constexpr int64_t kUnevenNs = 400'000;
// To catch up takes a wake-up and a launch.
constexpr int64_t kCatchUpNs = 200'000;
constexpr int kCatchUps = 8;
// So many stalls within so long make a gang, for so long.
constexpr size_t kStalls = 3;
constexpr int64_t kStallsWithinNs = 1'000'000'000;
constexpr int64_t kStallAgainNs = 100'000'000;  // one that lasts counts again
constexpr int64_t kGangForNs = 60'000'000'000;

}  // namespace

void Gangs::Add(Key key, std::vector<size_t> devices, bool requested) {
  Remove(key);
  if (devices.size() < 2) return;
  Share& share = shares_.emplace_back();
  share.key = key;
  share.requested = requested;
  for (const size_t device : devices) share.devices.emplace_back().device = device;
}

void Gangs::SetRequested(Key key, bool requested) {
  for (Share& share : shares_) {
    if (share.key == key) share.requested = requested;
  }
}

void Gangs::Remove(Key key) {
  std::erase_if(shares_, [key](const Share& share) { return share.key == key; });
}

void Gangs::ResetAfterOutage() {
  for (Share& share : shares_) {
    share.phase = Phase::kPlain;
    share.waits_since_ns = kNever;
  }
}

bool Gangs::IsGang(Key key) const {
  return std::any_of(shares_.begin(), shares_.end(), [key](const Share& share) {
    return share.key == key && share.phase != Phase::kPlain;
  });
}

void Gangs::Notify(const Share& share, Slice slice, Decisions& out) const {
  for (const OnDevice& on : share.devices) {
    out.orders.push_back({Order::What::kSlice, share.key, on.device, slice});
  }
}

Gangs::Decisions Gangs::Decide(int64_t now_ns, const See& see) {
  Decisions out;
  // Who has waited longest is asked first.
  std::sort(shares_.begin(), shares_.end(), [](const Share& a, const Share& b) {
    return a.waits_since_ns != b.waits_since_ns ? a.waits_since_ns < b.waits_since_ns
                                                : a.key < b.key;
  });
  for (Share& share : shares_) {
    bool wants = false;
    for (OnDevice& on : share.devices) {
      on.seen = see(share.key, on.device);
      wants = wants || on.seen.runnable;
    }
    if (share.phase != Phase::kAway || !wants) share.waits_since_ns = kNever;
    if (share.phase == Phase::kPlain) PollForStalls(share, now_ns, out);
  }
  for (Share& share : shares_) {
    const bool gang = share.requested || now_ns < share.gang_until_ns;
    if (gang && share.phase == Phase::kPlain) {
      // Open or not, its next slice is the first one as a gang.
      CallBack(share, out);
      share.catches_up = kCatchUps;  // what it has out was not launched as a gang's
      continue;
    }
    if (!gang && share.phase != Phase::kPlain) {
      share.phase = Phase::kPlain;
      share.stalls.clear();
      Notify(share, Slice::kNone, out);
    }
    switch (share.phase) {
      case Phase::kPlain:
        break;
      case Phase::kAway:
        MayBegin(share, now_ns, out);
        break;
      case Phase::kOn:
        WhileOn(share, now_ns, out);
        break;
      case Phase::kRevoked:
        WhileRevoked(share, now_ns, out);
        break;
      case Phase::kCatchingUp:
        if (now_ns < share.closes_ns) {
          out.next_ns = std::min(out.next_ns, share.closes_ns);
          break;
        }
        CallBack(share, out);
    }
  }
  return out;
}

// A kernel that waits for its peer has begun, and its backlog does not become less.
void Gangs::PollForStalls(Share& share, int64_t now_ns, Decisions& out) {
  for (OnDevice& on : share.devices) {
    const bool waits_elsewhere =
        std::any_of(share.devices.begin(), share.devices.end(), [&on](const OnDevice& other) {
          return &other != &on && other.seen.runnable && !other.seen.open;
        });
    if (!(on.seen.draining || on.seen.stalled) || on.seen.blocked) {
      on.stalled = false;
      on.backlog_ns = kNever;
      continue;
    }
    if (on.seen.backlog_ns < on.backlog_ns) {
      on.backlog_ns = on.seen.backlog_ns;
      on.moved_ns = now_ns;
    }
    if (!on.seen.stalled || !waits_elsewhere) continue;
    if (now_ns - on.moved_ns >= (on.stalled ? kStallAgainNs : kUnevenNs)) {
      share.stalls.push_back(now_ns);
      on.stalled = true;
      on.moved_ns = now_ns;
    }
    out.next_ns = std::min(out.next_ns, on.moved_ns + (on.stalled ? kStallAgainNs : kUnevenNs));
  }
  std::erase_if(share.stalls, [now_ns](int64_t when) { return now_ns - when > kStallsWithinNs; });
  if (share.stalls.size() >= kStalls) share.gang_until_ns = now_ns + kGangForNs;
}

// Another one is being let in on one of its devices.
bool Gangs::AnotherBegins(const Share& share, int64_t now_ns) const {
  return std::any_of(shares_.begin(), shares_.end(), [&](const Share& other) {
    if (&other == &share || other.phase != Phase::kOn) return false;
    if (now_ns - other.began_ns > kPatienceNs) return false;
    return std::any_of(other.devices.begin(), other.devices.end(), [&](const OnDevice& on) {
      const bool shared =
          std::any_of(share.devices.begin(), share.devices.end(),
                      [&on](const OnDevice& own) { return own.device == on.device; });
      return shared && !on.opened && on.seen.runnable;
    });
  });
}

void Gangs::MayBegin(Share& share, int64_t now_ns, Decisions& out) {
  bool wants = false, ready = true, may = true;
  const bool elsewhere =
      std::any_of(share.devices.begin(), share.devices.end(),
                  [](const OnDevice& on) { return on.seen.runnable && !on.seen.stalled; });
  for (const OnDevice& on : share.devices) {
    // What is stalled there waits for what is not launched elsewhere, if anything is not.
    if (!on.seen.runnable || (on.seen.stalled && elsewhere)) continue;
    wants = true;
    ready = ready && on.seen.ready;
    may = may && on.seen.may;
  }
  if (!wants) return;
  if (share.waits_since_ns == kNever) share.waits_since_ns = now_ns;
  const int64_t patient_until_ns = share.waits_since_ns + kPatienceNs;
  if (now_ns < patient_until_ns) out.next_ns = std::min(out.next_ns, patient_until_ns);
  if (!ready && (!may || now_ns < patient_until_ns)) return;
  if (AnotherBegins(share, now_ns)) return;
  share.phase = Phase::kOn;
  share.began_ns = now_ns;
  share.catches_up = 0;
  share.waits_since_ns = kNever;
  for (OnDevice& on : share.devices) on.opened = on.had_slice = false;
  Notify(share, Slice::kOn, out);
}

void Gangs::WhileOn(Share& share, int64_t now_ns, Decisions& out) {
  bool over = false, any = false, gathers = false;
  for (OnDevice& on : share.devices) {
    any = any || on.seen.open || on.seen.runnable;
    if (on.seen.open) {
      on.opened = on.had_slice = true;
    } else if (on.opened || on.seen.draining) {
      // Draining, and never seen open: it was let in and revoked at one instant.
      const bool left = on.seen.idle && !on.seen.runnable && !on.seen.draining;
      if (left) on.opened = false;
      over = over || !left;
    } else {
      gathers = gathers || (!on.had_slice && on.seen.limited && on.seen.runnable && on.seen.may &&
                            !on.seen.stalled);
    }
  }
  if (!over && any) return;
  // A limit may be reached where it was let in first, before it is let in where others must drain:
  // there it would never have its slice.
  if (over && gathers && now_ns - share.began_ns < kPatienceNs) {
    out.next_ns = std::min(out.next_ns, share.began_ns + kPatienceNs);
    return;
  }
  CallBack(share, out);
}

void Gangs::CallBack(Share& share, Decisions& out) const {
  share.phase = Phase::kRevoked;
  share.uneven_since_ns = kNever;
  for (OnDevice& on : share.devices) on.backlog_ns = kNever;
  Notify(share, Slice::kAway, out);
}

void Gangs::WhileRevoked(Share& share, int64_t now_ns, Decisions& out) {
  bool some_drained = false, all = true;
  int64_t moved_ns = std::numeric_limits<int64_t>::min();
  for (OnDevice& on : share.devices) {
    some_drained = some_drained || on.seen.drained || !on.seen.draining;
    if (!on.seen.draining || on.seen.drained) continue;
    all = false;
    if (on.seen.backlog_ns < on.backlog_ns) on.moved_ns = now_ns;
    on.backlog_ns = on.seen.backlog_ns;
    moved_ns = std::max(moved_ns, on.moved_ns);
  }
  if (all) {
    for (const OnDevice& on : share.devices) {
      out.orders.push_back({Order::What::kEndDrain, share.key, on.device, Slice::kAway});
    }
    share.phase = Phase::kAway;
    return;
  }
  if (!some_drained || share.catches_up >= kCatchUps) return;
  if (share.uneven_since_ns == kNever) share.uneven_since_ns = now_ns;
  moved_ns = std::max(moved_ns, share.uneven_since_ns);
  if (now_ns - moved_ns < kUnevenNs) {
    out.next_ns = std::min(out.next_ns, moved_ns + kUnevenNs);
    return;
  }
  ++share.catches_up;
  share.phase = Phase::kCatchingUp;
  share.closes_ns = now_ns + kCatchUpNs;
  out.next_ns = std::min(out.next_ns, share.closes_ns);
  Notify(share, Slice::kCatchUp, out);
}

}  // namespace prorata::policy
