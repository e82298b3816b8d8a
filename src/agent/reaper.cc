// What dead members held comes back when the device shows their memory gone, and not before: the
// driver frees it some time after the process is no more.

#include <spdlog/spdlog.h>

#include <chrono>

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
  bool any = false;
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    any |= index && share->HasDeparted(*index);
  }
  if (!any) return;
  const auto processes = devices_.Processes(device);
  std::vector<uint64_t> changed;
  for (const auto& [id, share] : shares_) {
    const auto index = share->IndexOf(device);
    if (!index) continue;
    for (Member* member : share->Members()) {
      if (!member->departed || member->devices[*index].released) continue;
      if (sharing_.Owes(*share, *member)) continue;  // another's charge is to come out of its grant
      if (processes) {
        const auto found = processes->find(member->process.pid);
        if (found != processes->end()) {
          // The same number may live on: a process that became another program by exec.
          const uint64_t own = LivingUse(member->process.pid, device);
          if (!found->second || *found->second > own) continue;
        }
      } else if (now_ns - member->departed_ns < kBlindNs) {
        continue;
      }
      if (share->Release(*member, *index)) changed.push_back(id);
    }
  }
  for (const uint64_t id : changed) {
    SaveSoon();
    TakeAwayIfDone(id);
  }
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
