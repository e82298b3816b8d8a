#pragma once

// One share on one device, in time: its lease word, and what its members say of their work. Reads
// and writes memory that others share and nothing else: no clock, socket or file, so the
// one-process simulation uses it as the agent does. Not thread-safe.
//
// What members write is not to be trusted: a counter may jump, go back or lie.

#include <cstdint>
#include <vector>

#include "policy/entitlement.h"
#include "policy/lease_policy.h"
#include "protocol/limits_file.h"
#include "protocol/usage_file.h"

namespace prorata::agent {

// What the limits file says of compute on a device: the terms, and how members are to keep them.
void WriteComputeLimits(protocol::DeviceLimits& limits, const policy::ComputeTerms& terms);

class ShareTime {
 public:
  // `limits` must stay where it is.
  explicit ShareTime(protocol::DeviceLimits* limits) : limits_(limits) {}

  // --- Members, by slot ------------------------------------------------------------------------
  void Admit(uint32_t slot);
  // The member's usage memory, new or mapped again; it stays until the next SetUsage or Depart.
  // What stands on its counter at first was used under an agent before us, and is not charged.
  void SetUsage(uint32_t slot, const protocol::DeviceUsage* usage);
  void SetConnected(uint32_t slot, bool connected);
  // Its process is dead: reads the counter for the last time.
  void Depart(uint32_t slot);
  // It is no more; its time stays with the share.
  void Forget(uint32_t slot);

  // --- What members said -----------------------------------------------------------------------
  void SaidIdle(uint32_t slot, uint32_t sequence);
  void SaidDrained(uint32_t slot, uint32_t sequence);

  // --- Looking ---------------------------------------------------------------------------------
  // Device time since the share was made, never less than before.
  uint64_t ReadDeviceTime();
  uint64_t ReadChargedTime() { return ReadDeviceTime() - history_ns_; }
  uint64_t MemberTime(uint32_t slot) const;  // as last read
  // What is launched and not done; and when that should be, kNever if it is not known.
  struct Queued {
    uint64_t ns = 0;
    int64_t end_ns = policy::LeasePolicy::kNever;
  };
  Queued QueuedAt(int64_t now_ns) const;
  uint64_t BacklogNs() const;
  bool AnyWaiting() const;
  bool AnyLiving() const;
  // What was launched before the lease closed is done. `late`: the share was passed over. Then a
  // member that says nothing and has nothing queued (it is stopped, say) no longer keeps the others
  // of its share from their turns, if one of them has drained.
  bool AllDrained(bool late) const;
  // By when, at the latest, by what its members say; `now_ns` if they do not.
  int64_t DrainedSince(int64_t now_ns) const;
  // Every member that ever launched has said under this very lease that it is idle, and has not
  // launched since. A share whose members have launched nothing yet is about to.
  bool AllIdle() const;

  // Each tenth of a second: counts the members that used the device within about the last second,
  // and writes that down for the time in which no agent speaks (DeviceLimits::active_members).
  void CountActive();
  // Members that have work on the device now; and what all shares on the device have together.
  uint32_t MembersAtWork() const;
  void SetMembersAtWork(uint32_t all) { limits_->members_at_work.store(all); }

  // What a member may keep queued under these terms, and no more than `bound_ns` of it.
  void WriteBacklogs(const policy::ComputeTerms& terms, int64_t bound_ns);

  // --- The lease -------------------------------------------------------------------------------
  // The member will see by itself, and soon enough, that the lease is as it is now.
  bool MindsLease(uint32_t slot, int64_t now_ns) const;
  uint32_t lease() const { return limits_->lease.load(); }
  void SetContendedBacklog(int64_t backlog_ns);
  void SetTogether(bool together);
  void SetClosely(bool closely);
  // Of the lease as it is. True: it was so, and is no longer; a member that drained in that moment
  // may have said nothing.
  bool SetDrainUnawaited(bool unawaited);
  // The next word; answers its sequence.
  uint32_t WriteLease(bool open, bool contended);

 private:
  static constexpr uint32_t kActiveCounts = 10;
  struct Member {
    uint32_t slot = 0;
    const protocol::DeviceUsage* usage = nullptr;  // null: not heard of since the agent started
    bool heard = false;                            // ever
    bool connected = false;
    bool departed = false;
    uint64_t counter_ns = 0;  // its device time as last read
    uint64_t device_time_ns = 0;
    uint32_t idle_sequence = 0;  // of the lease word for which it reported idle
    uint64_t idle_launches = 0;  // its launches then
    uint64_t counted_launches = 0;
    uint32_t quiet_counts = kActiveCounts;  // CountActive found it inactive so many times
    uint32_t drained_sequence = 0;
  };
  Member* Find(uint32_t slot);
  const Member* Find(uint32_t slot) const { return const_cast<ShareTime*>(this)->Find(slot); }

  protocol::DeviceLimits* limits_;
  std::vector<Member> members_;
  uint64_t forgotten_ns_ = 0;  // device time of members that are no more
  uint64_t history_ns_ = 0;    // on counters when they were first seen
};

}  // namespace prorata::agent
