// What dead members held comes back when the device shows their memory gone, and not before: the
// driver frees it some time after the process is no more.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "agent/node.h"
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
  const int64_t now_ns = RealClock().NowNs();
  for (size_t device = 0; device < devices_.count(); ++device) ReapDevice(device, now_ns);
  memory_.Look();
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

void Node::ReapDevice(size_t device, int64_t now_ns) {
  struct Waiting {
    Share* share;
    Member* member;
    uint32_t index;  // of the device in the share
    uint64_t own_before;
  };
  std::vector<Waiting> waiting;
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    if (!index) continue;
    for (Member* member : share->Members()) {
      if (!member->departed || member->devices[*index].released) continue;
      const uint64_t own = LivingUse(member->process.pid, device);
      waiting.push_back({share.get(), member, *index, own});
    }
  }
  if (waiting.empty()) return;
  const auto processes = devices_.Processes(device);
  std::vector<uint64_t> changed;
  for (const auto& [share, member, index, own_before] : waiting) {
    if (sharing_.Owes(*share, *member)) continue;  // another's charge is to come out of its grant
    if (processes) {
      const auto found = processes->find(member->process.pid);
      // The same number may live on: a process that became another program by exec.
      const uint64_t own = std::min(own_before, LivingUse(member->process.pid, device));
      if (found != processes->end() && (!found->second || *found->second > own) &&
          !InheritsRest(*member, index, device, found->second, own, now_ns)) {
        continue;
      }
    } else if (now_ns - member->departed_ns < kBlindNs) {
      continue;
    }
    if (share->Release(*member, index)) changed.push_back(share->id());
  }
  for (const uint64_t id : changed) {
    SaveSoon();
    TakeAwayIfDone(id);
  }
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
  if (!departed.devices[index].rest.Look(rest, now_ns)) return false;
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
