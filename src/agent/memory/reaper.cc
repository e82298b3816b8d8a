#include "agent/memory/reaper.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "agent/memory/charges.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(10);
// Where NVML has no figures per process, memory counts as gone this long after the death.
constexpr int64_t kBlindNs = 500 * kNsPerMs;

}  // namespace

// A dead member, with what its process was charged for as another member before NVML was asked.
struct Reaper::Awaited {
  uint64_t share_id;
  uint32_t slot;
  ProcessId process;
  uint64_t own_before;
};

void Reaper::ReapSoon() {
  if (armed_) return;
  armed_ = true;
  // The first poll at once (a posted one: the caller is in the middle of something).
  boost::asio::post(loop_, [this] { Reap(); });
}

void Reaper::Reap() {
  for (size_t device = 0; device < devices_.count(); ++device) ReapDevice(device);
  memory_.Poll();
  bool more = memory_.anybody_waits();
  for (const Share* share : shares_.All()) {
    for (uint32_t i = 0; i < share->device_count(); ++i) more |= share->HasDeparted(i);
  }
  armed_ = more;
  if (!more) return;
  timer_.expires_after(kLookEvery);
  timer_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) Reap();
  });
}

void Reaper::ReapDevice(size_t device) {
  if (reading_[device]) return;
  std::vector<Awaited> awaited = AwaitedOn(device);
  if (awaited.empty()) return;
  reading_[device] = true;
  devices_.ReadProcesses(device, [this, device, awaited = std::move(awaited)](
                                     const Devices::Reading<Devices::ByProcess>& reading) {
    reading_[device] = false;
    OnFigures(device, awaited, reading);
    memory_.Poll();
  });
}

std::vector<Reaper::Awaited> Reaper::AwaitedOn(size_t device) const {
  std::vector<Awaited> awaited;
  for (const auto& [share, index] : shares_.On(device)) {
    for (const Member* member : share->Members()) {
      if (!member->departed || member->devices[index].released) continue;
      awaited.push_back({share->id(), member->slot, member->process,
                         ChargedToLiving(shares_, member->process.pid, device)});
    }
  }
  return awaited;
}

// Only for those who were dead when NVML was asked: what it shows of them can only become less.
void Reaper::OnFigures(size_t device, const std::vector<Awaited>& awaited,
                       const Devices::Reading<Devices::ByProcess>& reading) {
  std::vector<uint64_t> changed;
  for (const Awaited& dead : awaited) {
    Member* member = shares_.FindMember(dead.share_id, dead.slot, dead.process);
    if (member == nullptr || !member->departed) continue;
    Share& share = *shares_.Find(dead.share_id);
    const auto index = share.IndexOf(device);
    if (!index || member->devices[*index].released) continue;
    if (sharing_.Owes(share, *member)) continue;  // another's charge is to come out of its grant
    if (!IsGone(dead, *member, *index, device, reading)) continue;
    if (share.Release(*member, *index)) changed.push_back(share.id());
  }
  for (const uint64_t id : changed) on_gone(id);
}

bool Reaper::IsGone(const Awaited& dead, Member& member, uint32_t index, size_t device,
                    const Devices::Reading<Devices::ByProcess>& reading) {
  if (!reading.value) return RealClock().NowNs() - member.departed_ns >= kBlindNs;
  const auto found = reading.value->find(dead.process.pid);
  if (found == reading.value->end()) return true;
  // The same number may live on: a process that became another program by exec. Its charges are set
  // beside the figure, which must not be an old one then.
  const uint64_t living = ChargedToLiving(shares_, dead.process.pid, device);
  if (living > 0 && reading.late()) return false;
  const uint64_t own = std::min(dead.own_before, living);
  if (found->second && *found->second <= own) return true;
  return InheritsRest(member, index, device, found->second, own);
}

// The kernel closed the driver's files when the process became another program, so what the former
// one had goes soon, and what then stays beyond the new one's charges (`own`) is the new one's,
// charged by nobody. In the same step the share is charged for it as the audit would: nothing is
// given twice. The audit goes on from there.
bool Reaper::InheritsRest(Member& departed, uint32_t index, size_t device,
                          std::optional<uint64_t> found, uint64_t own) {
  Share* its_share = nullptr;
  Member* heir = nullptr;
  uint32_t heirs_index = 0;
  for (const auto& on : shares_.On(device)) {
    for (Member* member : on.share->Members()) {
      if (member->departed || member->process.pid != departed.process.pid) continue;
      its_share = on.share;
      heirs_index = on.index;
      heir = member;
    }
  }
  // Without its usage (it has not joined an agent that was restarted) its charges are not known.
  if (heir == nullptr || !heir->usage) return false;
  const uint64_t rest = found ? *found - own : 0;
  if (!departed.devices[index].rest.Poll(rest, RealClock().NowNs())) return false;
  if (!found) return true;  // without figures the audit looks at the whole device
  heir->devices[heirs_index].audit.Set(rest);
  its_share->SetOverhead(*heir, heirs_index, rest);
  return true;
}

}  // namespace prorata::agent
