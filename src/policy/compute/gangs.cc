#include "policy/compute/gangs.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace prorata::policy {
namespace {

// Four slices: a gang that its devices do not agree on for so long is put first.
constexpr int64_t kPatienceNs = 52'000'000;
// If it owes time there: its turn would be taken from it at once. Shorter, neighbours pay for the
// drains of more such turns; longer, devices that nobody else wants idle for it.
constexpr int64_t kPatienceOfDebtorNs = 3 * kPatienceNs;
// A gang that has been drained on one device, and on the others has had nothing that became less,
// for so long: a peer is missing. Members say how far they are each tenth of a millisecond, and
// that they have drained within a quarter.
constexpr int64_t kUnevenNs = 400'000;
// To catch up takes a wake-up and a launch.
constexpr int64_t kCatchUpNs = 200'000;
constexpr int kCatchUps = 16;
// Ranks launch alike: none of them so many more than another, unless it is twice as many. Larger,
// programs that are no gang and are taken for one wait for each other.
constexpr uint64_t kAheadMax = 16;
// What a rank may be ahead by: of the tiniest kernels some fifty are within the bound of a backlog.
// If so many at once are not enough nobody waits for them.
constexpr uint32_t kLaunchesMax = 64;
constexpr int64_t kLetInNs = 26'000'000;  // the longest drain of another that is in its way
// The devices of a gang should be free within so long of each other. Longer, those that are free
// first idle; shorter, one is waited for that was free a moment ago.
constexpr int64_t kTogetherNs = 300'000;
constexpr int64_t kLookAgainNs = 1'000'000;  // what is left of a drain is seen by looking again
// A device that was left is had again without waiting for a turn, for a slice from the beginning.
constexpr int64_t kComeBackNs = 13'000'000;
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
      case Phase::kGathering:
        Gather(share, now_ns, out);
        break;
      case Phase::kOn:
        WhileOn(share, now_ns, out);
        break;
      case Phase::kRevoked:
        WhileRevoked(share, now_ns, out);
        break;
      case Phase::kCatchingUp:
        CatchUp(share, now_ns, out);
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
  if (share.stalls.empty()) {
    for (OnDevice& on : share.devices) on.unstalled_launches = on.seen.launches;
  }
  if (share.stalls.size() >= kStalls && LaunchesAlike(share)) {
    share.gang_until_ns = now_ns + kGangForNs;
  }
}

// Whether its devices were launched on as those are whose kernels wait for each other. Programs
// that share nothing but the share are not: what takes longer than was expected only looks so.
bool Gangs::LaunchesAlike(const Share& share) {
  uint64_t fewest = std::numeric_limits<uint64_t>::max(), most = 0;
  for (const OnDevice& on : share.devices) {
    const uint64_t launches = on.seen.launches - std::min(on.seen.launches, on.unstalled_launches);
    fewest = std::min(fewest, launches);
    most = std::max(most, launches);
  }
  return most <= std::max(2 * fewest, fewest + kAheadMax);
}

// Both want some device.
bool Gangs::Overlap(const Share& a, const Share& b) {
  return std::any_of(a.devices.begin(), a.devices.end(), [&b](const OnDevice& of_a) {
    return of_a.wanted &&
           std::any_of(b.devices.begin(), b.devices.end(), [&](const OnDevice& of_b) {
             return of_b.wanted && of_b.device == of_a.device;
           });
  });
}

// Another one is being let in on one of its devices.
bool Gangs::AnotherBegins(const Share& share, int64_t now_ns) const {
  return std::any_of(shares_.begin(), shares_.end(), [&](const Share& other) {
    const bool begins = other.phase == Phase::kGathering || other.phase == Phase::kOn;
    if (&other == &share || !begins) return false;
    if (now_ns - other.began_ns > kPatienceNs) return false;
    return std::any_of(other.devices.begin(), other.devices.end(), [&](const OnDevice& on) {
      const bool shared =
          std::any_of(share.devices.begin(), share.devices.end(),
                      [&on](const OnDevice& own) { return own.device == on.device; });
      return shared && !on.opened && on.seen.runnable;
    });
  });
}

// Where it wants to run, and how it stands there.
Gangs::Standing Gangs::StandingOf(Share& share) {
  Standing all;
  bool elsewhere = false, may_elsewhere = false;
  for (const OnDevice& on : share.devices) {
    elsewhere = elsewhere || (on.seen.runnable && !on.seen.stalled);
    may_elsewhere = may_elsewhere || (on.seen.runnable && on.seen.limited_ns == 0);
  }
  for (OnDevice& on : share.devices) {
    // What is stalled there waits for what is not launched elsewhere, if anything is not. And where
    // it may not run it pays for the wait for as long as it lasts.
    const bool left_alone = elsewhere || (may_elsewhere && on.seen.limited_ns > 0);
    on.wanted = on.seen.runnable && !(on.seen.stalled && left_alone);
    // Where it wants nothing now it will in a moment.
    if (!on.seen.stalled) all.limited_ns = std::max(all.limited_ns, on.seen.limited_ns);
    if (!on.wanted) continue;
    all.wants = true;
    all.ready = all.ready && on.seen.ready;
    all.ahead = all.ahead && on.seen.ahead;
    all.may = all.may && on.seen.may;
    all.owes = all.owes || on.seen.owes;
    all.lag_ns += on.seen.lag_ns;
  }
  return all;
}

// Gangs may each be first on one of the devices that they share, with nobody else in their way.
// They do not wait for each other then: whoever is due most goes first.
bool Gangs::IsDueMost(const Share& share, const Standing& standing) {
  if (!standing.ahead) return false;
  return std::none_of(shares_.begin(), shares_.end(), [&](Share& other) {
    if (&other == &share || other.phase != Phase::kAway) return false;
    const Standing of_other = StandingOf(other);
    return of_other.wants && of_other.ahead && of_other.limited_ns == 0 &&
           of_other.lag_ns > standing.lag_ns && Overlap(share, other);
  });
}

void Gangs::MayBegin(Share& share, int64_t now_ns, Decisions& out) {
  const Standing standing = StandingOf(share);
  if (standing.limited_ns > 0) out.next_ns = std::min(out.next_ns, now_ns + standing.limited_ns);
  if (!standing.wants) return;
  if (share.waits_since_ns == kNever) share.waits_since_ns = now_ns;
  const int64_t patient_until_ns =
      share.waits_since_ns + (standing.owes ? kPatienceOfDebtorNs : kPatienceNs);
  if (now_ns < patient_until_ns) out.next_ns = std::min(out.next_ns, patient_until_ns);
  const bool ready = standing.ready || IsDueMost(share, standing);
  const bool let_in = standing.may && now_ns >= patient_until_ns;
  if (standing.limited_ns > 0 || (!ready && !let_in)) return;
  if (AnotherBegins(share, now_ns)) return;
  share.phase = ready ? Phase::kGathering : Phase::kOn;
  share.began_ns = now_ns;
  share.catches_up = 0;
  share.behind.clear();
  share.waits_since_ns = kNever;
  for (OnDevice& on : share.devices) on.let_in = on.opened = on.had_slice = on.gathers = false;
  if (ready) return Gather(share, now_ns, out);
  LetIn(share, out);  // they do not agree
}

// Where it was let in first its kernels would only wait for those where others have to drain. So
// others go on there for as long as they may.
void Gangs::Gather(Share& share, int64_t now_ns, Decisions& out) {
  bool all = true;
  int64_t free_in_ns = 0;  // the last of its devices
  for (OnDevice& on : share.devices) {
    on.wanted = on.seen.runnable ? on.wanted || !on.seen.stalled
                                 : on.wanted && (on.seen.open || on.seen.draining);
    // Its limit was reached while it gathered.
    const bool lost = on.wanted && on.seen.draining;
    if (lost || now_ns - share.began_ns >= kPatienceNs) return CallBack(share, out);
    if (!on.wanted || (on.gathers && on.seen.open)) continue;
    all = false;
    free_in_ns = std::max(free_in_ns, on.seen.free_in_ns);
  }
  for (OnDevice& on : share.devices) {
    if (!on.wanted || on.gathers) continue;
    const int64_t early_ns = free_in_ns - on.seen.free_in_ns - kTogetherNs;
    if (early_ns > 0) {
      out.next_ns = std::min(out.next_ns, now_ns + std::clamp(early_ns, kUnevenNs, kLookAgainNs));
      continue;
    }
    on.gathers = true;
    out.orders.push_back({Order::What::kSlice, share.key, on.device, Slice::kGather, 0});
  }
  out.next_ns = std::min(out.next_ns, share.began_ns + kPatienceNs);
  if (!all) return;
  share.phase = Phase::kOn;
  share.began_ns = now_ns;
  LetIn(share, out);
}

// Where all that it has stands behind waits, and it owes time, it would have the device without
// being next there, and have it taken away at once, with its turn. It has it as soon as that has
// run: the others may wait for its next launch.
void Gangs::LetIn(Share& share, Decisions& out) {
  for (OnDevice& on : share.devices) {
    const bool in_vain = on.seen.stalled && on.seen.blocked && on.seen.owes;
    if (on.let_in || (in_vain && !on.wanted)) continue;
    on.let_in = true;
    out.orders.push_back({Order::What::kSlice, share.key, on.device, Slice::kOn, 0});
  }
}

void Gangs::WhileOn(Share& share, int64_t now_ns, Decisions& out) {
  LetIn(share, out);
  bool over = false, any = false;
  for (OnDevice& on : share.devices) {
    if (!on.let_in) continue;
    any = any || on.seen.open || on.seen.runnable;
    if (on.seen.open) {
      on.opened = on.had_slice = true;
    } else if (on.seen.draining && on.seen.idle) {
      // It leaves this one to others while it has nothing there.
      if (!on.seen.drained) continue;
      out.orders.push_back({Order::What::kEndDrain, share.key, on.device, Slice::kOn, 0});
      on.opened = false;
    } else if (on.opened || on.seen.draining) {
      // Draining, and never seen open: it was let in and revoked at one instant.
      const bool left = on.seen.idle && !on.seen.runnable && !on.seen.draining;
      if (left) on.opened = false;
      over = over || !left;
    } else {
      // One that it left is had again within a slice; after that it is a new turn.
      const bool comes_back = on.had_slice && on.seen.runnable && on.seen.may && !on.seen.stalled;
      over = over || (comes_back && now_ns - share.began_ns >= kComeBackNs);
    }
  }
  if (over || !any) CallBack(share, out);
}

// Until those that are behind have been let in, and have had the time to launch.
void Gangs::CatchUp(Share& share, int64_t now_ns, Decisions& out) {
  bool all = true;
  for (const OnDevice& on : share.devices) {
    const bool behind = std::ranges::find(share.behind, on.device) != share.behind.end();
    all = all && (!behind || on.seen.open || !on.seen.runnable);
  }
  if (all && share.closes_ns == kNever) share.closes_ns = now_ns + kCatchUpNs;
  const int64_t until_ns = std::min(share.closes_ns, share.began_ns + kLetInNs);
  if (now_ns >= until_ns) return CallBack(share, out);
  out.next_ns = std::min(out.next_ns, until_ns);
}

void Gangs::CallBack(Share& share, Decisions& out) const {
  share.phase = Phase::kRevoked;
  share.uneven_since_ns = kNever;
  for (OnDevice& on : share.devices) on.backlog_ns = kNever;
  Notify(share, Slice::kAway, out);
}

// What its kernels on other devices wait for may be its next launch there.
bool Gangs::IsBehind(const OnDevice& on) {
  const bool blocked = on.seen.blocked && on.seen.runnable;
  return on.seen.draining ? on.seen.drained || blocked : on.seen.runnable && !on.seen.stalled;
}

void Gangs::WhileRevoked(Share& share, int64_t now_ns, Decisions& out) {
  bool some_drained = false, all = true;
  int64_t moved_ns = std::numeric_limits<int64_t>::min();
  for (OnDevice& on : share.devices) {
    some_drained = some_drained || IsBehind(on);
    if (!on.seen.draining || on.seen.drained) continue;
    // Behind waits on all its devices, it is in nobody's way.
    if (on.seen.blocked) continue;
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
  if (share.catches_up >= kCatchUps || !some_drained) return;
  if (share.uneven_since_ns == kNever) share.uneven_since_ns = now_ns;
  moved_ns = std::max(moved_ns, share.uneven_since_ns);
  if (now_ns - moved_ns < kUnevenNs) {
    out.next_ns = std::min(out.next_ns, moved_ns + kUnevenNs);
    return;
  }
  std::vector<size_t> behind;
  for (const OnDevice& on : share.devices) {
    if (IsBehind(on)) behind.push_back(on.device);
  }
  share.launches = behind == share.behind ? 2 * share.launches : 1;
  share.catches_up = share.launches > kLaunchesMax ? kCatchUps : share.catches_up + 1;
  if (share.catches_up == kCatchUps) return;
  share.phase = Phase::kCatchingUp;
  share.began_ns = now_ns;
  share.closes_ns = kNever;
  for (const OnDevice& on : share.devices) {
    out.orders.push_back({Order::What::kSlice, share.key, on.device, Slice::kCatchUp,
                          IsBehind(on) ? share.launches : 0});
  }
  share.behind = std::move(behind);
}

}  // namespace prorata::policy
