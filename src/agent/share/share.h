#pragma once

// One share: its files, its members, and its memory on each device.
//
// A member has a slot (its row of grants) from its first join until its process is dead and the
// device shows its memory gone. In between it may lose its connection and join again (the agent was
// restarted), or become another program by exec, which makes a new member of it.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/runtime/cgroup.h"
#include "agent/runtime/connection.h"
#include "agent/runtime/process.h"
#include "agent/share/share_life.h"
#include "agent/share/share_time.h"
#include "agent/share/shared_files.h"
#include "api/control.h"
#include "policy/compute/entitlement.h"
#include "policy/memory/audit.h"
#include "policy/memory/ledger.h"

namespace prorata::agent {

using shm::kMaxDevices;
using shm::kMaxMembers;

struct DeviceOfShare {
  size_t device = 0;  // index in Devices
  std::string uuid;
  uint64_t memory_bytes = 0;          // the limit
  uint64_t memory_request_bytes = 0;  // the part of it that is set aside
  policy::ComputeTerms compute;
};

policy::ComputeTerms ComputeTermsOf(const api::ShareTerms& terms);
DeviceOfShare OnDevice(size_t device, const std::string& uuid, const api::ShareTerms& terms);

struct ShareConfig {
  std::string name;
  std::string folder;  // RUNTIME_DIR/shares/…
  uid_t owner_uid = 0;
  ShareLife life;
  bool any_container = false;  // of several at once; else of one after another
  // Whole devices for containers with the plain driver: nobody is a member, nothing is kept.
  bool exclusive = false;
  int64_t created_unix_s = 0;
  std::vector<DeviceOfShare> devices;
  api::OnFull on_full = {};
  api::Gang gang = api::Gang::kAuto;
  api::AllowedUsers allow_users = {};
  std::vector<std::string> share_memory_with;  // names of shares that may open what this exports
};

// The last ten parts of a tenth of a second each, for a mean that does not flicker.
class BusyParts {
 public:
  void Add(uint64_t ppm) {
    sum_ += static_cast<uint32_t>(ppm) - parts_[next_];
    parts_[next_] = static_cast<uint32_t>(ppm);
    next_ = (next_ + 1) % parts_.size();
  }
  uint32_t Mean() const { return sum_ / static_cast<uint32_t>(parts_.size()); }

 private:
  std::array<uint32_t, shm::kUtilizationMeanOf> parts_{};
  size_t next_ = 0;
  uint32_t sum_ = 0;
};

struct Member {
  uint32_t slot = 0;
  ProcessId process;
  std::string command;  // of the program that joined
  bool departed = false;
  int64_t departed_ns = 0;
  std::optional<UsageMapping> usage;  // absent: has not joined again since the agent started
  std::shared_ptr<Connection> connection;
  std::unique_ptr<ProcessWatch> watch;
  uint32_t settling = 0;                    // by ContextSettling, under way
  bool reported_uncovered_context = false;  // in the log
  // False for one of an agent before us until it has said again what shared memory it holds.
  bool reported_references = true;

  struct OnDevice {
    bool released = false;    // departed, and its memory is gone
    policy::Standstill rest;  // departed, and its process lives on: what may still be its memory
    // What the audit found beyond its charges (MemberRow::overhead_bytes), and its own claims.
    policy::OverheadAudit audit;
    policy::ClaimWatch claims;
    // Of its usage memory, as reported in events so far.
    uint64_t refusals = 0;
    uint64_t ungoverned_functions = 0;
    uint64_t persistent_ns = 0;
    // Why the agent refused it memory last, until that was reported; "": it has not.
    std::string refused_why;
    // It waited for so much, was granted it, and is about to charge it.
    uint64_t kept_bytes = 0;
    int64_t kept_until_ns = 0;  // real time
    uint64_t shown_ns = 0;      // so much of its device time has been shown as utilization
    BusyParts parts;
  };
  std::array<OnDevice, kMaxDevices> devices;
};

class Share {
 public:
  Share(uint64_t id, ShareConfig config, LimitsMapping limits);

  uint64_t id() const { return id_; }
  const ShareConfig& config() const { return config_; }
  shm::LimitsFile* limits() const { return limits_.get(); }
  // Whether programs of this user may join it and see what its programs are.
  bool Admits(uid_t user) const;
  void SetAllowedUsers(api::AllowedUsers users) { config_.allow_users = std::move(users); }
  uint32_t device_count() const { return static_cast<uint32_t>(config_.devices.size()); }
  // Which of the share's devices is device `device` of the machine.
  std::optional<uint32_t> IndexOf(size_t device) const;

  // Writes identity, limits and terms to the limits file of a new share; for an adopted one only
  // what may have changed, and the next epoch.
  // `context_overhead_bytes`: of each of its devices.
  void WriteLimits(std::span<const uint64_t> context_overhead_bytes, bool adopted);

  // Other terms on a device, in force at once for all members. A memory limit below what is granted
  // gives nothing more until use has fallen, and takes back what is not used.
  void SetTerms(uint32_t device, const api::ShareTerms& terms);

  std::vector<api::ShareTerms> Terms() const;  // of each of its devices

  // What members do when a device is full, from their next call on.
  void SetOnFull(api::OnFull on_full);
  // Who gives it its slices is distinguished (Leases::SetGang).
  void SetGang(api::Gang gang) { config_.gang = gang; }

  // --- members (null: there is none) ---
  // Null: all slots are taken. `inner_pid`: the process's number as it sees itself; 0: not told, so
  // it is looked up.
  Member* Admit(const ProcessId& process, uint32_t inner_pid = 0);
  // Who was in the slot under an agent before us, as its limits file says; empty: nobody.
  struct Former {
    ProcessId process;
    bool departed = false;
  };
  std::optional<Former> FormerMember(uint32_t slot) const;
  // Such a member; takes the grants that stand in the limits file.
  Member* Restore(uint32_t slot, const ProcessId& process);
  Member* FindMember(uint32_t slot) const {
    return slot < kMaxMembers ? members_[slot].get() : nullptr;
  }
  Member* FindLiving(const ProcessId& process) const;
  std::vector<Member*> Members() const;
  uint32_t CountLiving() const;
  bool HasMembers() const { return member_count_ > 0; }
  // Whether members of `other` may open what members of this one export.
  bool SharesMemoryWith(const Share& other) const;
  // Its process is dead, or became another program: the grants stay, nothing else does.
  void Depart(Member& member, int64_t now_ns);
  void SetUsage(Member& member, UsageMapping usage);
  // The connection it speaks by from now on (null: none); answers the one before.
  std::shared_ptr<Connection> Connect(Member& member, std::shared_ptr<Connection> connection);
  // The device shows its memory gone. True: that was the last device, and the member is no more.
  bool Release(Member& member, uint32_t device);
  bool HasDeparted(uint32_t device) const;
  // Whether a living member has not joined again since the agent started.
  bool HasAbsent() const;

  // --- memory ---
  struct Attempt {
    policy::Ledger::Verdict verdict = policy::Ledger::Verdict::kRefused;
    uint64_t sum_bytes = 0;  // kBeyond: the ceiling that it takes
    bool slack = false;      // kBeyond: less, after RecallSlack
  };
  // kGranted: the member's grant covers `needed_bytes` now, in the limits file too. kBeyond: the
  // limit would allow it, the ceiling does not. kRefused otherwise; never kRecall.
  Attempt TryGrant(Member& member, uint32_t device, uint64_t needed_bytes);
  // Takes back what the members may use and do not, but what one that waited is about to charge.
  void RecallSlack(uint32_t device);
  void SetCeiling(uint32_t device, uint64_t bytes) { ledgers_[device].SetCeiling(bytes); }
  // Memory that `from` was charged for is charged to `to` now (policy::Ledger::Move); `from` is
  // `to` where nobody was.
  void MoveGrant(uint32_t from, uint32_t to, uint32_t device, uint64_t bytes);
  // While a limit below use is being reached: takes back all slack.
  void RecallOverLimit(uint32_t device);
  const policy::Ledger& ledger(uint32_t device) const { return ledgers_[device]; }
  // What living members hold: as they say, as far as it was granted, and what the audit found
  // beyond that. The overhead is the part of it that no allocation asked for.
  uint64_t UsedBytes(uint32_t device) const;
  uint64_t UsedBytes(const Member& member, uint32_t device) const;
  uint64_t ChargedBytes(const Member& member, uint32_t device) const;  // without what was found
  uint64_t OverheadBytes(uint32_t device) const;
  uint64_t DepartedBytes(uint32_t device) const;  // grants that wait for the device

  // --- what the share shows of itself (share_view.cc) ---
  // Each tenth of a second, with the time since the last: the parts of the devices' time.
  void PublishUtilization(int64_t elapsed_ns);

  // Allocations that its members were refused, as they say, since this agent has had the share. It
  // never goes down, and stays at its most.
  void CountRefusals(uint32_t device, uint64_t count) {
    refusals_[device] += std::min(count, ~uint64_t{0} - refusals_[device]);
  }
  uint64_t refusals(uint32_t device) const { return refusals_[device]; }

  // --- audit (memory/memory_audit.h) ---
  // What the device lost to a member beyond what it was charged for. Takes that much from what the
  // share may grant.
  void SetOverhead(Member& member, uint32_t device, uint64_t bytes);
  // The same where it is not known which member it is (no figures per process).
  void SetOverhead(uint32_t device, uint64_t bytes);
  uint64_t AuditedBytes(uint32_t device) const;  // of all members, the dead too, and of none
  struct DeviceAudit {
    policy::OverheadAudit of_device;  // where figures per process are missing
    bool figures_missing = false;
    policy::ExcessWatch bypass;
  };
  DeviceAudit& audit(uint32_t device) { return audits_[device]; }
  const DeviceAudit& audit(uint32_t device) const { return audits_[device]; }

  // --- time ---
  ShareTime& time(uint32_t device) { return times_[device]; }
  const ShareTime& time(uint32_t device) const { return times_[device]; }

  // --- life ---
  void End();  // nobody joins any more
  bool ended() const { return ended_; }
  // What kept it (ShareLife) is gone: it ends with its last member.
  void LetGo() { kept_ = false; }
  bool kept() const { return kept_; }
  // Where nothing keeps it and nobody runs on it any more it ends: what its members held comes back
  // when the device shows it gone, and its request is free now.
  void EndIfOver() {
    if (!kept_ && CountLiving() == 0) End();
  }
  // Of an agent before us, for a process that runs no program on it: it may not have had the
  // answer, and ask again.
  bool may_be_unanswered = false;
  void KeepAgain(ShareLife life);             // its line is in its file again, or in another file
  std::unique_ptr<ProcessWatch> owner_watch;  // of the process that keeps it
  std::unique_ptr<Acceptor> acceptor;
  std::optional<Container> container;  // whose it is, until no process is in it

 private:
  std::atomic<uint64_t>& GrantWord(uint32_t slot, uint32_t device) const;
  std::vector<uint64_t> UsedBySlot(uint32_t device) const;
  void WriteTerms(uint32_t device);
  void Recall(uint32_t slot, uint32_t device);
  void PublishGranted(uint32_t device);
  void DropSlack(Member& member, uint32_t device);
  void PublishProcess(const Member& member, uint32_t inner_pid);
  void PublishUsage(const Member& member);
  void PublishGone(uint32_t slot);
  std::atomic<uint64_t>& OverheadWord(const Member& member, uint32_t device) const {
    return limits_->members[member.slot].overhead_bytes[device];
  }
  void ApplyLimit(uint32_t device);

  uint64_t id_;
  ShareConfig config_;
  LimitsMapping limits_;
  std::vector<policy::Ledger> ledgers_;
  std::vector<ShareTime> times_;
  std::vector<uint64_t> shown_ns_;  // by device: so much of the device time was shown
  std::vector<DeviceAudit> audits_;
  std::array<uint64_t, kMaxDevices> refusals_{};
  std::array<std::unique_ptr<Member>, kMaxMembers> members_;
  uint32_t member_count_ = 0;
  uint32_t usage_count_ = 0;  // usage memories mapped since the agent started
  bool ended_ = false;
  bool kept_ = true;
};

}  // namespace prorata::agent
