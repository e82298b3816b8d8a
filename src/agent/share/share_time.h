#pragma once

// One share on one device, in time: its lease word, and what its members publish of their work.
// Reads and writes memory that others share and nothing else: no clock, socket or file, so the
// one-process simulation uses it as the agent does. Not thread-safe.
//
// What members write is not to be trusted: a counter may jump, go back or lie.

#include <cstdint>
#include <optional>
#include <vector>

#include "policy/compute/lease_policy.h"
#include "shm/limits_file.h"
#include "shm/usage_file.h"

namespace prorata::agent {

// What the limits file says of compute on a device: the terms, and how members are to keep them.
void WriteComputeLimits(shm::DeviceLimits& limits, const policy::ComputeTerms& terms);

class ShareTime {
 public:
  // `limits` must stay where it is.
  explicit ShareTime(shm::DeviceLimits* limits) : limits_(limits) {}

  // --- Members, by slot ------------------------------------------------------------------------
  void Admit(uint32_t slot);
  // The member's usage memory, new or mapped again; it stays until the next SetUsage or Depart.
  // What stands on its counter at first was used under an agent before us, and is not charged.
  void SetUsage(uint32_t slot, const shm::DeviceUsage* usage);
  void SetConnected(uint32_t slot, bool connected);
  // Its process is dead. Of what it occupied counts what there was at the last Poll, or published.
  void Depart(uint32_t slot);
  // It is no more; its time stays with the share.
  void Forget(uint32_t slot);

  // --- What members said -----------------------------------------------------------------------
  void Said(uint32_t slot);  // anything
  void SaidIdle(uint32_t slot, uint32_t sequence);
  void SaidDrained(uint32_t slot, uint32_t sequence);

  // --- Looking ---------------------------------------------------------------------------------
  // What the members published of their work; totals never go back.
  policy::LeasePolicy::Work Poll(int64_t now_ns);
  uint64_t BusyNs();                         // of all members ever, by their own estimate
  uint64_t MemberTime(uint32_t slot) const;  // of one, as last read
  bool AnyWaiting() const;
  // Since it joined, of the member that made most; as new as its helper's last look.
  uint64_t MostLaunches() const;
  bool AllDeparted() const;  // it has members, and all of them are dead
  bool AnyMember() const;    // it has one that is not
  // What was submitted before the lease was revoked is done. A member that seems to be stopped does
  // not keep the others of its share from their lease, if one of them has drained.
  bool AllDrained() const;
  // By when, at the latest, by what its members say; `now_ns` if they do not.
  int64_t DrainedSince(int64_t now_ns) const;
  // Every member that ever launched has said under this very lease that it is idle, and has not
  // launched since. A share whose members have launched nothing yet is about to.
  bool AllIdle() const;

  // Each tenth of a second: counts the members that used the device within about the last second,
  // and writes that down for failsafe mode (DeviceLimits::active_members).
  void CountActive();
  // Members that have unfinished work on the device now; and what all shares there have together.
  uint32_t MembersAtWork() const;
  void SetMembersAtWork(uint32_t all) { limits_->members_at_work.store(all); }

  // What a member may have submitted and unfinished under these terms, and no more than `bound_ns`.
  void WriteBacklogs(const policy::ComputeTerms& terms, int64_t bound_ns);

  // --- The lease -------------------------------------------------------------------------------
  uint32_t lease() const { return limits_->lease.load(); }
  bool open() const { return shm::LaunchesPass(*limits_, lease()); }  // be it for a few launches
  bool contended() const { return (lease() & shm::kLeaseContended) != 0; }
  void SetContendedBacklog(int64_t backlog_ns);
  void SetIdleReport(int64_t idle_report_ns);
  void SetTogether(uint32_t together);  // shm::kNotTogether ...
  // What is left of the bucket of its limit, for whoever schedules after an outage; and what was,
  // if anything was ever noted.
  void NoteLimitTokens(int64_t tokens_ns);
  std::optional<int64_t> LimitTokensNs() const;
  // The next word; answers its sequence. Closed, it may let each member make so many launches.
  uint32_t WriteLease(bool open, bool contended, uint32_t extra_launches = 0);

 private:
  // What a member that is at work changes whenever its helper thread looks.
  struct Words {
    uint64_t occupied_ns = 0, backlog_ns = 0, launches = 0, busy_ns = 0;
    int64_t expected_end_ns = 0;
    uint32_t waiting = 0, drained_sequence = 0;
    bool operator==(const Words&) const = default;
  };
  void ReadBusy();
  void ReadOccupied(int64_t now_ns);
  bool AllStopped(int64_t now_ns);
  int64_t AwayNs(int64_t now_ns) const;
  static constexpr uint32_t kActiveCounts = 10;
  struct Member {
    uint32_t slot = 0;
    const shm::DeviceUsage* usage = nullptr;  // null: not heard of since the agent started
    bool heard = false;                       // ever
    bool connected = false;
    bool departed = false;
    uint64_t busy_seen_ns = 0;  // the words as last read
    uint64_t occupied_seen_ns = 0;
    uint64_t busy_ns = 0;        // since it joined
    uint32_t idle_sequence = 0;  // of the lease word for which it reported idle
    uint64_t idle_launches = 0;  // its launches then
    uint64_t counted_launches = 0;
    uint32_t quiet_counts = kActiveCounts;  // CountActive found it inactive so many times
    uint32_t drained_sequence = 0;
    Words words;
    bool said = true;            // something, since the last look
    int64_t quiet_since_ns = 0;  // it should have said or written something since then
    bool stopped = false;        // for too long, and until it does
  };
  bool MustSpeak(const Member& member, int64_t now_ns) const;
  Member* Find(uint32_t slot);
  const Member* Find(uint32_t slot) const { return const_cast<ShareTime*>(this)->Find(slot); }

  shm::DeviceLimits* limits_;
  std::vector<Member> members_;
  uint64_t busy_ns_ = 0;  // of all members ever
  uint64_t occupied_ns_ = 0;
  int64_t occupied_read_ns_ = 0;
};

}  // namespace prorata::agent
