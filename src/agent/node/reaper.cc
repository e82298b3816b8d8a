// What dead members held comes back when the device shows their memory gone, and not before: the
// driver frees it some time after the process is no more.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "agent/node/node.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(10);
// Where NVML has no figures per process, memory counts as gone this long after the death.
constexpr int64_t kBlindNs = 500 * kNsPerMs;

}  // namespace

void Node::ReapSoon() {
  if (reap_armed_) return;
  reap_armed_ = true;
  // The first look at once (a posted one: the caller is in the middle of something).
  boost::asio::post(loop_, [this] { Reap(); });
}

void Node::Reap() {
  for (size_t device = 0; device < devices_.count(); ++device) ReapDevice(device);
  memory_.Poll();
  bool more = memory_.anybody_waits();
  for (const auto& [id, share] : shares_) {
    for (uint32_t i = 0; i < share->device_count(); ++i) more |= share->HasDeparted(i);
  }
  reap_armed_ = more;
  if (!more) return;
  reap_.expires_after(kLookEvery);
  reap_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) Reap();
  });
}

struct Node::Waiting {
  uint64_t share_id;
  uint32_t slot;
  ProcessId process;
  uint64_t own_before;
};

void Node::ReapDevice(size_t device) {
  if (reaping_[device]) return;
  std::vector<Waiting> waiting;
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    if (!index) continue;
    for (Member* member : share->Members()) {
      if (!member->departed || member->devices[*index].released) continue;
      waiting.push_back(
          {id, member->slot, member->process, LivingUse(member->process.pid, device)});
    }
  }
  if (waiting.empty()) return;
  reaping_[device] = true;
  devices_.ReadProcesses(device, [this, device, waiting = std::move(waiting)](
                                     const Devices::Reading<Devices::ByProcess>& reading) {
    reaping_[device] = false;
    Reaped(device, waiting, reading);
    memory_.Poll();
  });
}

// Only for those who were dead when NVML was asked: what it shows of them can only become less.
void Node::Reaped(size_t device, const std::vector<Waiting>& waiting,
                  const Devices::Reading<Devices::ByProcess>& reading) {
  const int64_t now_ns = RealClock().NowNs();
  const auto& processes = reading.value;
  std::vector<uint64_t> changed;
  for (const auto& [share_id, slot, process, own_before] : waiting) {
    Member* member = FindAgain(share_id, slot, process);
    Share* share = Find(share_id);
    const auto on = share != nullptr ? share->IndexOf(device) : std::nullopt;
    if (member == nullptr || !on || !member->departed || member->devices[*on].released) continue;
    const uint32_t index = *on;
    if (sharing_.Owes(*share, *member)) continue;  // another's charge is to come out of its grant
    if (processes) {
      const auto found = processes->find(process.pid);
      // The same number may live on: a process that became another program by exec. Its charges
      // are set beside the figure, which must not be an old one then.
      const uint64_t living = LivingUse(process.pid, device);
      if (found != processes->end() && living > 0 && reading.late()) continue;
      const uint64_t own = std::min(own_before, living);
      if (found != processes->end() && (!found->second || *found->second > own) &&
          !InheritsRest(*member, index, device, found->second, own, now_ns)) {
        continue;
      }
    } else if (now_ns - member->departed_ns < kBlindNs) {
      continue;
    }
    if (share->Release(*member, index)) changed.push_back(share->id());
  }
  for (const uint64_t id : changed) TakeAwayIfDone(id);
}

// The kernel closed the driver's files when the process became another program, so what the former
// one had goes soon, and what then stays beyond the new one's charges (`own`) is the new one's,
// charged by nobody. In the same step the share is charged for it as the audit would: nothing is
// given twice. The audit goes on from there.
bool Node::InheritsRest(Member& departed, uint32_t index, size_t device,
                        std::optional<uint64_t> found, uint64_t own, int64_t now_ns) {
  Share* its_share = nullptr;
  Member* heir = nullptr;
  for (const auto& [id, share] : shares_) {
    if (!share->IndexOf(device)) continue;
    for (Member* member : share->Members()) {
      if (member->departed || member->process.pid != departed.process.pid) continue;
      its_share = share.get();
      heir = member;
    }
  }
  // Without its usage (it has not joined an agent that was restarted) its charges are not known.
  if (heir == nullptr || !heir->usage) return false;
  const uint64_t rest = found ? *found - own : 0;
  if (!departed.devices[index].rest.Poll(rest, now_ns)) return false;
  if (!found) return true;  // without figures the audit looks at the whole device
  const uint32_t heirs_index = *its_share->IndexOf(device);
  heir->devices[heirs_index].audit.Set(rest);
  its_share->SetOverhead(*heir, heirs_index, rest);
  return true;
}

uint64_t Node::LivingUse(pid_t pid, size_t device) const {
  uint64_t sum = 0;
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    if (!index) continue;
    for (const Member* member : share->Members()) {
      if (member->departed || member->process.pid != pid || !member->usage) continue;
      sum += std::min(member->usage->device(*index).used_bytes.load(),
                      share->ledger(*index).grant_bytes(member->slot));
    }
  }
  return sum;
}

}  // namespace prorata::agent
