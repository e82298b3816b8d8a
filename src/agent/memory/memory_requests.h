#pragma once

// The memory that members ask for: what the share's ledger allows, and, where more was promised
// than a device has, what policy::MemoryAdmission gives the share. Who cannot be served waits here:
//
//   A. for memory that is on its way back: of the dead, and what members that have not joined again
//      since the agent started may have freed meanwhile; three seconds at most, and for the latter
//      only in the agent's first three seconds;
//   B. for a full device, as long as the call says (GrantRequest::wait_ms), or the share's on_full
//      if that changes meanwhile; in the order that MemoryAdmission decides between shares, and
//      first come first served among the requests of one share, of which one a device stands in its
//      line.
//
// The ledger of a share has a ceiling: its memory request, which is set aside for it, or what
// MemoryAdmission gave beyond that. So a share never asks MemoryAdmission within its request, and
// one whose request is its limit never does. Before a request waits or fails, all that members of
// shares that may borrow may use and do not is taken back (a member asks again when it needs it).
// What the audit found of a share is as if it had been given it.
//
// What shares may hold together matters where one of them may borrow: it is what NVML's total
// leaves beside other programs' memory, which is what NVML shows as used less what our shares use,
// the median of a few samples, since the two are not read in one moment. Elsewhere the arithmetic
// of promises (agent/share/memory_fit.h) is enough, and no estimate can make it fail.
//
// Not thread-safe: the agent's loop.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "agent/runtime/devices.h"
#include "agent/share/events.h"
#include "agent/share/share.h"
#include "base/clock.h"
#include "policy/memory/memory_admission.h"
#include "wire/messages.h"

namespace prorata::agent {

class MemoryRequests {
 public:
  using Answer = std::function<void(wire::GrantResult result, uint64_t grant_bytes)>;
  struct Request {
    uint32_t slot = 0;
    uint32_t device = 0;  // of the share
    uint64_t needed_bytes = 0;
    uint32_t wait_ms = wire::kNoWait;
    std::weak_ptr<Connection> connection;  // gone: nobody waits for the answer
    Answer answer;
  };

  // `clock` is the members'.
  MemoryRequests(Devices& devices, const Clock& clock, Events& events);

  // A new share, before it has members. "memory_exceeded": its request cannot be set aside now, or
  // those who wait could no longer be sure of theirs.
  Status Add(Share& share);
  // One of an agent before us, with its members.
  void Adopt(Share& share);
  void Remove(Share& share);
  // Before a share's terms become these; as Add.
  Status SetTerms(Share& share, const std::vector<api::ShareTerms>& terms, api::OnFull on_full);

  // Called before a request waits or fails: deaths that the loop has not come to yet are noticed.
  std::function<void()> notice_deaths = [] {};

  // At once or not at all.
  wire::GrantResult Grant(Share& share, Member& member, uint32_t device, uint64_t needed_bytes);
  // Answers now, or after some poll of the device, or never: its connection is gone. True: it
  // waits.
  bool Ask(Share& share, Request request);
  // Serves, refuses and forgets who waits. Called every ten milliseconds or so while anybody does.
  void Poll();
  bool anybody_waits() const { return !pending_.empty(); }
  // To be called now and then, so that Grant has samples of what other programs take.
  void Sample();
  // Takes back what shares may use and do not, so that it is there for a new share or new terms.
  void Gather();

  void Describe(const Share& share, uint32_t device, api::ShareDevice& out) const;
  // What shares hold beyond their requests, on a device where any may.
  uint64_t Borrowed(size_t device) const;

 private:
  static constexpr int64_t kBackNs = 3 * kNsPerS;

  struct Pending {
    uint64_t share_id = 0;
    Request request;
    uint64_t ticket = 0;        // of MemoryAdmission, which may have withdrawn it; 0: it has none
    int64_t since_ns = 0;       // on the members' clock
    int64_t until_ns = 0;       // B
    int64_t back_until_ns = 0;  // A, real time
    bool reported = false;      // that a wait has begun, ...
    uint64_t asked_bytes = 0;   // ... for so much beside what the member had
    uint64_t polls_until = 0;   // Others::polls by which it was decided by what is there now
  };
  struct Others {  // programs outside prorata
    struct Sample {
      int64_t at_ns;
      uint64_t bytes;
    };
    std::vector<Sample> samples;  // the fresh ones
    int64_t sampled_ns = 0;
    bool asked = false;
    uint64_t polls = 0;
    uint64_t bytes = 0;  // what decisions go by
  };

  policy::MemoryAdmission::Terms TermsOf(const Share& share,
                                         const std::vector<api::ShareTerms>& terms,
                                         api::OnFull on_full) const;
  bool Lends(size_t device) const;
  void SetCapacities(const policy::MemoryAdmission::Terms* also = nullptr);
  uint64_t Foreign(size_t device) const;
  static uint64_t Holds(const Share& share, uint32_t device);
  void SetCeiling(Share& share, uint32_t device);
  void Acknowledge(const Share& share);
  void SetOnFull(uint64_t share_id, api::OnFull on_full);
  Status Refused(const Share& share, const policy::MemoryAdmission::Terms& terms) const;
  Share* Find(uint64_t id) const;
  bool Give(Share& share, uint32_t device, uint64_t sum_bytes);
  // One attempt; *sum_bytes: what the share must hold for it (kDeviceFull).
  wire::GrantResult Try(Share& share, Member& member, uint32_t device, uint64_t needed_bytes,
                        bool gather, uint64_t* sum_bytes);
  void Gather(size_t device);
  static uint64_t UseOf(const Share& share, size_t device);
  void SampleDevice(size_t device);
  void Sampled(size_t device, const std::map<uint64_t, uint64_t>& before, uint64_t used_bytes);
  bool OnItsWayBack(const Share& share, uint32_t device) const;
  bool AnyOnItsWayBack(size_t device) const;
  bool MayBeStale(const Pending& pending, size_t device) const;
  bool Serve();
  bool Judge(Pending& pending);  // true: it is over
  void QueueUp(Pending& pending, Share& share, uint64_t sum_bytes);
  void Finish(Pending& pending, wire::GrantResult result, const char* outcome);

  Devices& devices_;
  const Clock& clock_;
  Events& events_;
  policy::MemoryAdmission admission_;
  std::map<uint64_t, Share*> shares_;
  std::vector<Others> others_;  // by device
  std::list<Pending> pending_;  // in the order in which they came
  uint64_t next_ticket_ = 1;
  int64_t adopted_ns_ = -kBackNs;  // real time
};

}  // namespace prorata::agent
