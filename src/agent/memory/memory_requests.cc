#include "agent/memory/memory_requests.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "agent/share/share_events.h"
#include "base/bytes.h"

namespace prorata::agent {
namespace {

using wire::GrantResult;
using Verdict = policy::MemoryAdmission::Verdict;

// For so long a member that waited has what it was granted, whether it has charged it or not.
constexpr int64_t kKeptNs = 2 * kNsPerS;
constexpr int64_t kSampleEveryNs = 5 * kNsPerMs;
constexpr int64_t kSampleFreshNs = 100 * kNsPerMs;
// What other programs take is the median of so many polls, for one alone may count as theirs what a
// share took and gave back meanwhile; nobody is refused before so many polls since it asked.
constexpr size_t kPolls = 3;
constexpr int64_t kMaxPollingNs = 250 * kNsPerMs;  // with a driver that does not answer
// A member whose use changes all the time could keep a request in recalls; after so many rounds it
// counts as not served.
constexpr int kMaxRounds = 64;
constexpr int kMaxOfAMember = 64;  // requests that wait
// The capacity of a device where no share may borrow.
constexpr uint64_t kPlenty = uint64_t{1} << 60;

int64_t Until(int64_t since_ns, uint32_t wait_ms) {
  return wait_ms == wire::kWaitForever ? int64_t{1} << 62 : since_ns + int64_t{wait_ms} * kNsPerMs;
}

}  // namespace

MemoryRequests::MemoryRequests(Devices& devices, const Clock& clock, Events& events)
    : devices_(devices),
      clock_(clock),
      events_(events),
      admission_(std::vector<uint64_t>(devices.count(), kPlenty), {}),
      others_(devices.count()) {}

policy::MemoryAdmission::Terms MemoryRequests::TermsOf(const Share& share,
                                                       const std::vector<api::ShareTerms>& terms,
                                                       api::OnFull on_full) const {
  policy::MemoryAdmission::Terms of;
  of.limit_bytes.assign(devices_.count(), 0);
  of.request_bytes.assign(devices_.count(), 0);
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    const size_t device = share.config().devices[i].device;
    of.limit_bytes[device] = terms[i].memory_bytes;
    of.request_bytes[device] = terms[i].memory_request_bytes;
  }
  of.on_full = on_full.waits() ? policy::OnFull::kWait : policy::OnFull::kFail;
  return of;
}

bool MemoryRequests::Lends(size_t device) const { return admission_.capacity(device) < kPlenty; }

// A device begins to lend with its first share that may borrow, `also` one that is about to come.
void MemoryRequests::SetCapacities(const policy::MemoryAdmission::Terms* also) {
  for (size_t device = 0; device < devices_.count(); ++device) {
    const bool lends = admission_.AnyMayBorrow(device) ||
                       (also != nullptr && also->limit_bytes[device] > also->request_bytes[device]);
    if (lends == Lends(device)) continue;
    others_[device].samples.clear();
    others_[device].bytes = lends ? Foreign(device) : 0;
    const uint64_t total = devices_[device].total_bytes;
    admission_.SetCapacity(device,
                           lends ? total - std::min(total, others_[device].bytes) : kPlenty);
  }
}

// What other programs take by the last figure, until there are samples.
uint64_t MemoryRequests::Foreign(size_t device) const {
  uint64_t ours = 0;
  for (const auto& [id, share] : shares_) ours += UseOf(*share, device);
  const uint64_t used = devices_.LastUsedBytes(device);
  return used > ours ? used - ours : 0;
}

uint64_t MemoryRequests::Holds(const Share& share, uint32_t device) {
  return share.ledger(device).granted_bytes() + share.AuditedBytes(device);
}

void MemoryRequests::SetCeiling(Share& share, uint32_t device) {
  const uint64_t held = admission_.held(share.id(), share.config().devices[device].device);
  const uint64_t audited = share.AuditedBytes(device);
  share.SetCeiling(device, held > audited ? held - audited : 0);
}

Share* MemoryRequests::Find(uint64_t id) const {
  const auto found = shares_.find(id);
  return found == shares_.end() ? nullptr : found->second;
}

// Why MemoryAdmission refuses these terms, which it has not taken.
Status MemoryRequests::Refused(const Share& share,
                               const policy::MemoryAdmission::Terms& terms) const {
  for (const DeviceOfShare& on : share.config().devices) {
    const uint64_t request = terms.request_bytes[on.device];
    const uint64_t has = admission_.held(share.id(), on.device);
    const uint64_t free = admission_.free_bytes(on.device);
    if (request <= has || request - has <= free) continue;
    return Fail("memory_exceeded",
                "the share requests " + FormatBytes(request) + " of memory, but only " +
                    FormatBytes(has + free) + " of GPU " + std::to_string(on.device) +
                    " can be guaranteed to it now: shares hold " +
                    FormatBytes(admission_.borrowed_bytes(on.device)) +
                    " beyond their requests; try again when they have freed it, or ask for less");
  }
  return Fail("memory_exceeded",
              "with these terms shares that wait when the GPU is full (--on-full wait) could never "
              "be given all of their limits; ask for less, or try again when some have ended");
}

Status MemoryRequests::Add(Share& share) {
  const auto terms = TermsOf(share, share.Terms(), share.config().on_full);
  SetCapacities(&terms);
  const bool added = admission_.Add(share.id(), terms);
  const Status refused = added ? Status() : Refused(share, terms);
  SetCapacities();
  if (!added) return refused;
  shares_[share.id()] = &share;
  Sample();
  for (uint32_t i = 0; i < share.device_count(); ++i) SetCeiling(share, i);
  return {};
}

void MemoryRequests::Adopt(Share& share) {
  std::vector<uint64_t> held(devices_.count(), 0);
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    held[share.config().devices[i].device] = Holds(share, i);
  }
  adopted_ns_ = RealClock().NowNs();
  shares_[share.id()] = &share;
  admission_.Add(share.id(), TermsOf(share, share.Terms(), share.config().on_full), held);
  SetCapacities();
  for (uint32_t i = 0; i < share.device_count(); ++i) SetCeiling(share, i);
}

void MemoryRequests::Remove(Share& share) {
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    const auto next = std::next(pending);
    if (pending->share_id == share.id()) {
      Finish(*pending, GrantResult::kShareFull, "share_ended");
      pending_.erase(pending);
    }
    pending = next;
  }
  admission_.Remove(share.id());
  shares_.erase(share.id());
  SetCapacities();
}

Status MemoryRequests::SetTerms(Share& share, const std::vector<api::ShareTerms>& terms,
                                api::OnFull on_full) {
  const auto asked = TermsOf(share, terms, on_full);
  // What it took of its request was not asked for; it is borrowed when the request falls below it.
  Acknowledge(share);
  SetCapacities(&asked);
  const bool set = admission_.SetTerms(share.id(), asked);
  const Status refused = set ? Status() : Refused(share, asked);
  SetCapacities();
  if (!set) return refused;
  if (on_full != share.config().on_full) SetOnFull(share.id(), on_full);
  for (uint32_t i = 0; i < share.device_count(); ++i) SetCeiling(share, i);
  return {};
}

// What waits, waits for as long as the new terms say, since it came.
void MemoryRequests::SetOnFull(uint64_t share_id, api::OnFull on_full) {
  for (Pending& pending : pending_) {
    if (pending.share_id != share_id) continue;
    if (!on_full.waits()) admission_.Cancel(std::exchange(pending.ticket, 0));
    pending.until_ns = Until(pending.since_ns, on_full.wait_ms);
  }
}

void MemoryRequests::Acknowledge(const Share& share) {
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    admission_.Acknowledge(share.id(), share.config().devices[i].device, Holds(share, i));
  }
}

bool MemoryRequests::Give(Share& share, uint32_t device, uint64_t sum_bytes) {
  const size_t number = share.config().devices[device].device;
  const uint64_t ticket = next_ticket_++;
  const auto verdict = admission_.Request(share.id(), ticket, number,
                                          sum_bytes + share.AuditedBytes(device), clock_.NowNs());
  if (verdict == Verdict::kWaits) admission_.Cancel(ticket);  // QueueUp does that in earnest
  if (verdict != Verdict::kGiven) return false;
  SetCeiling(share, device);
  return true;
}

GrantResult MemoryRequests::Try(Share& share, Member& member, uint32_t device,
                                uint64_t needed_bytes, bool gather, uint64_t* sum_bytes) {
  for (int round = 0; round < kMaxRounds; ++round) {
    const auto attempt = share.TryGrant(member, device, needed_bytes);
    if (attempt.verdict == policy::Ledger::Verdict::kGranted) return GrantResult::kGranted;
    if (attempt.verdict != policy::Ledger::Verdict::kBeyond) return GrantResult::kShareFull;
    *sum_bytes = attempt.sum_bytes;
    if (Give(share, device, attempt.sum_bytes)) continue;
    if (attempt.slack) {
      share.RecallSlack(device);
    } else if (gather) {
      Gather(share.config().devices[device].device);
      gather = false;
    } else {
      return GrantResult::kDeviceFull;
    }
  }
  return GrantResult::kDeviceFull;
}

GrantResult MemoryRequests::Grant(Share& share, Member& member, uint32_t device,
                                  uint64_t needed_bytes) {
  uint64_t sum_bytes = 0;
  return Try(share, member, device, needed_bytes, true, &sum_bytes);
}

// Takes back what shares may use and do not, and looks what other programs take.
void MemoryRequests::Gather(size_t device) {
  SampleDevice(device);
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    if (!index) continue;
    const DeviceOfShare& on = share->config().devices[*index];
    if (on.memory_request_bytes < on.memory_bytes) share->RecallSlack(*index);
    Acknowledge(*share);
    admission_.GiveBack(id, device, Holds(*share, *index));
    SetCeiling(*share, *index);
  }
}

void MemoryRequests::Gather() {
  for (size_t device = 0; device < devices_.count(); ++device) Gather(device);
}

void MemoryRequests::Sample() {
  for (size_t device = 0; device < devices_.count(); ++device) SampleDevice(device);
}

uint64_t MemoryRequests::UseOf(const Share& share, size_t device) {
  const auto index = share.IndexOf(device);
  return index ? share.UsedBytes(*index) + share.DepartedBytes(*index) : 0;
}

// What is decided until the figure comes is decided by those before it.
void MemoryRequests::SampleDevice(size_t device) {
  Others& others = others_[device];
  const int64_t now_ns = RealClock().NowNs();
  if (!Lends(device) || others.asked || now_ns - others.sampled_ns < kSampleEveryNs) return;
  others.sampled_ns = now_ns;
  others.asked = true;
  // Read before and after NVML is: what is charged or given back meanwhile is no other program's.
  std::map<uint64_t, uint64_t> before;
  for (const auto& [id, share] : shares_) before[id] = UseOf(*share, device);
  devices_.ReadMemory(device, [this, device, before = std::move(before)](
                                  const Devices::Reading<driver::NvmlMemory>& reading) {
    others_[device].asked = false;
    if (Lends(device) && reading.value && !reading.late())
      Sampled(device, before, reading.value->used_bytes);
  });
}

void MemoryRequests::Sampled(size_t device, const std::map<uint64_t, uint64_t>& before,
                             uint64_t used_bytes) {
  Others& others = others_[device];
  uint64_t ours = 0;
  for (const auto& [id, share] : shares_) {
    const auto was = before.find(id);
    ours += std::max(was != before.end() ? was->second : 0, UseOf(*share, device));
  }
  std::erase_if(others.samples, [&](const Others::Sample& sample) {
    return others.sampled_ns - sample.at_ns > kSampleFreshNs;
  });
  if (others.samples.size() >= kPolls) others.samples.erase(others.samples.begin());
  others.samples.push_back({others.sampled_ns, used_bytes > ours ? used_bytes - ours : 0});
  ++others.polls;
  for (const auto& [id, share] : shares_) Acknowledge(*share);  // what an audit found
  std::vector<uint64_t> sorted;
  for (const Others::Sample& sample : others.samples) sorted.push_back(sample.bytes);
  std::ranges::sort(sorted);
  const uint64_t typical = sorted[sorted.size() / 2];
  others.bytes = typical;
  const uint64_t total = devices_[device].total_bytes;
  admission_.SetCapacity(device, total > typical ? total - typical : 0);
}

// Whether memory of this share may be there soon that is not now.
bool MemoryRequests::OnItsWayBack(const Share& share, uint32_t device) const {
  return share.HasDeparted(device) ||
         (RealClock().NowNs() < adopted_ns_ + kBackNs && share.HasAbsent());
}

bool MemoryRequests::AnyOnItsWayBack(size_t device) const {
  return std::ranges::any_of(shares_, [&](const auto& entry) {
    const auto index = entry.second->IndexOf(device);
    return index && OnItsWayBack(*entry.second, *index);
  });
}

// Whether a request may be in want only of what other programs had before it came.
bool MemoryRequests::MayBeStale(const Pending& pending, size_t device) const {
  const Others& others = others_[device];
  return others.bytes > 0 && others.polls < pending.polls_until &&
         RealClock().NowNs() < pending.back_until_ns - kBackNs + kMaxPollingNs;
}

bool MemoryRequests::Ask(Share& share, Request request) {
  Member* member = share.FindMember(request.slot);
  if (member == nullptr) return false;
  Pending pending;
  pending.share_id = share.id();
  pending.request = std::move(request);
  pending.since_ns = clock_.NowNs();
  const Request& asked = pending.request;
  uint64_t sum_bytes = 0;
  const auto result = Try(share, *member, asked.device, asked.needed_bytes, true, &sum_bytes);
  const bool hopeless = asked.needed_bytes > share.ledger(asked.device).limit_bytes();
  if (result == GrantResult::kGranted || hopeless) {
    Finish(pending, result, "");
    return false;
  }
  notice_deaths();
  // The call may have waited for an agent before this one, or was sent before the span changed.
  const uint32_t span_ms = share.config().on_full.wait_ms;
  pending.until_ns = Until(pending.since_ns, std::min(asked.wait_ms, span_ms));
  const bool knows = asked.wait_ms != wire::kNoWait && span_ms != wire::kWaitForever;
  if (knows && asked.wait_ms < span_ms) {
    pending.since_ns -= int64_t{span_ms - asked.wait_ms} * kNsPerMs;
  }
  pending.back_until_ns = RealClock().NowNs() + kBackNs;
  const Others& others = others_[share.config().devices[asked.device].device];
  pending.polls_until = others.polls + kPolls + (others.asked ? 1 : 0);
  if (Judge(pending)) return false;
  const auto own = std::ranges::count_if(pending_, [&](const Pending& other) {
    return other.share_id == pending.share_id && other.request.slot == pending.request.slot;
  });
  if (own >= kMaxOfAMember) {
    Finish(pending, result, "refused");
    return false;
  }
  pending_.push_back(std::move(pending));
  return true;
}

// A request that could not be served a moment ago: tries once more, and decides whether it may
// wait.
bool MemoryRequests::Judge(Pending& pending) {
  Share* share = Find(pending.share_id);
  Member* member = share != nullptr ? share->FindMember(pending.request.slot) : nullptr;
  if (member == nullptr || member->departed || pending.request.connection.expired() ||
      pending.request.connection.lock()->closed()) {
    pending.request.answer = nullptr;
    Finish(pending, GrantResult::kDeviceFull, "process_ended");
    return true;
  }
  const Request& asked = pending.request;
  uint64_t sum_bytes = 0;
  const auto result = Try(*share, *member, asked.device, asked.needed_bytes, false, &sum_bytes);
  if (result == GrantResult::kGranted) {
    Finish(pending, result, "granted");
    return true;
  }
  const bool may_come_back = RealClock().NowNs() < pending.back_until_ns;
  if (result == GrantResult::kShareFull) {
    if (may_come_back && OnItsWayBack(*share, asked.device) &&
        asked.needed_bytes <= share->ledger(asked.device).limit_bytes()) {
      return false;
    }
    Finish(pending, result, "refused");
    return true;
  }
  if (asked.wait_ms != wire::kNoWait && share->config().on_full.waits()) {
    if (clock_.NowNs() >= pending.until_ns) {
      Finish(pending, result, "timed_out");
      return true;
    }
    QueueUp(pending, *share, sum_bytes);
    return false;
  }
  const size_t device = share->config().devices[asked.device].device;
  if (may_come_back && (AnyOnItsWayBack(device) || MayBeStale(pending, device))) return false;
  Finish(pending, result, "refused");
  return true;
}

// One request of a share a device stands in the line of MemoryAdmission: the sums that two would
// ask for are not independent. The others of the share follow it.
void MemoryRequests::QueueUp(Pending& pending, Share& share, uint64_t sum_bytes) {
  const Request& asked = pending.request;
  if (!pending.reported) {
    const Member& member = *share.FindMember(asked.slot);
    pending.reported = true;
    pending.asked_bytes =
        asked.needed_bytes - std::min(asked.needed_bytes, share.ChargedBytes(member, asked.device));
    spdlog::info("share '{}': process {} waits for {} of GPU {}", share.config().name,
                 member.process.pid, FormatBytes(pending.asked_bytes),
                 share.config().devices[asked.device].device);
    auto event = EventOf(api::EventKind::kWaitBegun, share, &member, asked.device);
    event.asked_bytes = pending.asked_bytes;
    events_.AddCounted(std::move(event));
  }
  sum_bytes += share.AuditedBytes(asked.device);
  if (pending.ticket != 0 && admission_.Amend(pending.ticket, sum_bytes)) return;
  admission_.Cancel(pending.ticket);
  pending.ticket = 0;
  for (const Pending& other : pending_) {
    if (other.share_id == pending.share_id && other.ticket != 0 &&
        other.request.device == asked.device) {
      return;
    }
  }
  const uint64_t ticket = next_ticket_++;
  const auto verdict = admission_.Request(
      share.id(), ticket, share.config().devices[asked.device].device, sum_bytes, clock_.NowNs());
  if (verdict == Verdict::kWaits) pending.ticket = ticket;
}

void MemoryRequests::Finish(Pending& pending, GrantResult result, const char* outcome) {
  if (pending.ticket != 0) admission_.Cancel(pending.ticket);
  pending.ticket = 0;
  Share* share = Find(pending.share_id);
  Member* member = share != nullptr ? share->FindMember(pending.request.slot) : nullptr;
  const uint32_t device = pending.request.device;
  if (member != nullptr && result == GrantResult::kDeviceFull) {
    member->devices[device].refused_why = "device_full";
  }
  // Whoever is next in line would have it back before a busy machine lets this one run.
  if (member != nullptr && result == GrantResult::kGranted && pending.reported) {
    member->devices[device].kept_bytes = pending.request.needed_bytes;
    member->devices[device].kept_until_ns = RealClock().NowNs() + kKeptNs;
  }
  if (pending.reported && share != nullptr) {
    auto event = EventOf(api::EventKind::kWaitEnded, *share, member, device);
    event.asked_bytes = pending.asked_bytes;
    event.waited_ms = (clock_.NowNs() - pending.since_ns) / kNsPerMs;
    event.outcome = outcome;
    events_.AddCounted(std::move(event));
  }
  if (!pending.request.answer) return;
  pending.request.answer(result,
                         member != nullptr ? share->ledger(device).grant_bytes(member->slot) : 0);
}

// Gives the shares of those who are next what they wait for; true: there were some.
bool MemoryRequests::Serve() {
  const auto served = admission_.Decide(clock_.NowNs());
  for (Pending& pending : pending_) {
    if (std::ranges::find(served, pending.ticket) == served.end()) continue;
    pending.ticket = 0;
    Share& share = *Find(pending.share_id);
    SetCeiling(share, pending.request.device);
  }
  return !served.empty();
}

void MemoryRequests::Poll() {
  if (pending_.empty()) return;
  for (size_t device = 0; device < devices_.count(); ++device) {
    const bool awaited = std::ranges::any_of(pending_, [&](const Pending& pending) {
      const Share* share = Find(pending.share_id);
      return share != nullptr && share->config().devices[pending.request.device].device == device;
    });
    if (awaited) Gather(device);
  }
  // Once for everybody who is served; each may let the next of its share into the line.
  for (size_t round = 0, most = pending_.size() + 1; round < most; ++round) {
    if (!Serve() && round > 0) return;
    for (auto pending = pending_.begin(); pending != pending_.end();) {
      const auto next = std::next(pending);
      if (Judge(*pending)) pending_.erase(pending);
      pending = next;
    }
  }
}

void MemoryRequests::Describe(const Share& share, uint32_t device, api::ShareDevice& out) const {
  out.admitted_bytes = share.ledger(device).ceiling_bytes();
  int64_t oldest_ns = 0;
  for (const Pending& pending : pending_) {
    if (pending.share_id != share.id() || pending.request.device != device || !pending.reported) {
      continue;
    }
    ++out.memory_waits;
    oldest_ns = std::max(oldest_ns, clock_.NowNs() - pending.since_ns);
  }
  out.memory_waiting_ns = static_cast<uint64_t>(oldest_ns);
}

uint64_t MemoryRequests::Borrowed(size_t device) const {
  return Lends(device) ? admission_.borrowed_bytes(device) : 0;
}

}  // namespace prorata::agent
