#pragma once

// Shares over several devices whose kernels wait for each other (collectives): they run on all
// their devices at the same time, or what runs on one of them waits for the rest and holds the
// device up.
//
// How. Each device has its own LeasePolicy, which never opens a gang by itself (GangSlice::kAway),
// but says when it would. A gang's slice begins when each device on which it wants to run would
// open it. It gathers them first: each revokes its running share in time for all to become free
// together (kGather), and only when all of them are the gang's is it let in (kOn). Where they do
// not agree for long it is let in wherever it can be, and later if it owes time to others there. At
// its limit on one device it does not begin. What one device decides ends it on all: its slice is
// over, or its limit is reached. A gang that is idle on one device leaves that one to others for so
// long.
//
//   - A revoked gang holds its devices until it has drained on all of them, those too where it
//     is idle. If it has drained on some, or all that it has there stands behind a wait that its
//     own next launch may end, and on the others nothing goes on, kernels there wait for
//     peers that were not launched any more: those that have drained are behind, and may make a
//     launch each, then two, then four, and nobody is let in before that (kCatchUp). Whoever is
//     ahead by then waits for the others in turn, which begin with one launch again. That is done
//     so often only; then the device passes it over, as it does with everybody.
//   - Gangs that share some devices may each be first on one and wait for the other. Where nobody
//     else is in their way the largest lag, over all devices, goes first. Else who has waited for
//     long is put first, the longest wait before all: no two of them wait for each other.
//   - A share that did not ask for it is a gang for a while once it was seen to stall: stalled
//     on one device while it waited for its lease on another, several times in a second.
//
// Pure, as the policies: what is seen comes in, what the devices' policies are to do goes
// out.

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "policy/compute/lease_policy.h"

namespace prorata::policy {

class Gangs {
 public:
  using Key = LeasePolicy::Key;
  using Slice = LeasePolicy::GangSlice;
  using Seen = LeasePolicy::GangSeen;
  using See = std::function<Seen(Key share, size_t device)>;
  static constexpr int64_t kNever = LeasePolicy::kNever;

  struct Order {
    enum class What : uint8_t { kSlice, kEndDrain } what = What::kSlice;
    Key share = 0;
    size_t device = 0;
    Slice slice = Slice::kNone;
    uint32_t launches = 0;  // kCatchUp: of each member there
  };
  struct Decisions {
    std::vector<Order> orders;
    int64_t next_ns = kNever;
  };

  // A share over several devices. `requested`: it is a gang from the start.
  void Add(Key share, std::vector<size_t> devices, bool requested);
  void SetRequested(Key share, bool requested);
  void Remove(Key share);
  // The devices' policies have forgotten all gangs: as if none were a gang.
  void ResetAfterOutage();
  bool empty() const { return shares_.empty(); }
  bool IsGang(Key share) const;

  // On every event, and by `next_ns`; again after its orders were carried out, until none is given.
  Decisions Decide(int64_t now_ns, const See& see);

 private:
  enum class Phase : uint8_t { kPlain, kAway, kGathering, kOn, kRevoked, kCatchingUp };
  struct OnDevice {
    size_t device = 0;
    Seen seen;
    bool wanted = false;     // as its slice began, or while it gathered
    bool gathers = false;    // it was told to
    bool let_in = false;     // in this slice
    bool opened = false;     // in this slice, and it has not left it since
    bool had_slice = false;  // was opened in this slice
    bool stalled = false;
    // `seen.launches` when its share was last seen without a stall of late.
    uint64_t unstalled_launches = 0;
    // Stalled or revoked: what was last seen, and when it was last seen to become less.
    int64_t backlog_ns = kNever;
    int64_t moved_ns = 0;
  };
  struct Share {
    Key key = 0;
    bool requested = false;
    Phase phase = Phase::kPlain;
    std::vector<OnDevice> devices;
    int64_t waits_since_ns = kNever;
    int64_t began_ns = 0;              // its slice
    int64_t closes_ns = 0;             // kCatchingUp
    int64_t uneven_since_ns = kNever;  // revoked, and drained on some device only
    int catches_up = 0;
    uint32_t launches = 0;       // that were given at the last of these, to whoever is
    std::vector<size_t> behind;  // the devices that had drained then
    std::vector<int64_t> stalls;
    int64_t gang_until_ns = 0;  // seen to stall
  };

  struct Standing {  // over all devices that it wants
    bool wants = false, ready = true, ahead = true, may = true, owes = false;
    int64_t limited_ns = 0;
    double lag_ns = 0;
  };

  static void PollForStalls(Share& share, int64_t now_ns, Decisions& out);
  void Notify(const Share& share, Slice slice, Decisions& out) const;
  void CallBack(Share& share, Decisions& out) const;
  void Gather(Share& share, int64_t now_ns, Decisions& out);
  static void LetIn(Share& share, Decisions& out);
  void WhileOn(Share& share, int64_t now_ns, Decisions& out);
  void CatchUp(Share& share, int64_t now_ns, Decisions& out);
  static bool IsBehind(const OnDevice& on);
  static bool LaunchesAlike(const Share& share);
  void WhileRevoked(Share& share, int64_t now_ns, Decisions& out);
  static Standing StandingOf(Share& share);
  static bool Overlap(const Share& a, const Share& b);
  bool IsDueMost(const Share& share, const Standing& standing);
  void MayBegin(Share& share, int64_t now_ns, Decisions& out);
  bool AnotherBegins(const Share& share, int64_t now_ns) const;

  std::vector<Share> shares_;
};

}  // namespace prorata::policy
