// What dead members held comes back when the device shows their memory gone, and not before: the
// driver frees it some time after the process is no more.

#include <spdlog/spdlog.h>

#include <chrono>

#include "agent/node.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(10);
// How long a request waits for memory of the dead before it is refused.
constexpr int64_t kWaitNs = 3 * kNsPerS;
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
  RetryWaiters();
  bool more = !waiters_.empty();
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

void Node::WaitForMemory(Share& share, uint32_t slot, uint32_t device,
                         std::function<bool(bool last)> retry) {
  waiters_.push_back({share.id(), slot, device, RealClock().NowNs() + kWaitNs, std::move(retry)});
  ReapSoon();
}

void Node::RetryWaiters() {
  const int64_t now_ns = RealClock().NowNs();
  std::vector<Waiter> waiting;
  waiting.swap(waiters_);
  for (Waiter& waiter : waiting) {
    Share* share = Find(waiter.share_id);
    const Member* member = share != nullptr ? share->FindMember(waiter.slot) : nullptr;
    if (member == nullptr || member->departed) continue;
    // The last dead one's memory is back: what is not there now will not come.
    const bool last = now_ns >= waiter.until_ns || !share->HasDeparted(waiter.device);
    if (!waiter.retry(last) && !last) waiters_.push_back(std::move(waiter));
  }
}

}  // namespace prorata::agent
