#include "agent/memory/rechecks.h"

#include <chrono>

namespace prorata::agent {
namespace {

// A device is looked at again no more often than this: a program that probes for memory must not
// keep the agent at NVML.
constexpr int64_t kRecheckEveryNs = 20 * kNsPerMs;
constexpr auto kRecheckWithin = std::chrono::milliseconds(100);
constexpr size_t kMaxRechecked = 4096;  // requests of one device that wait for it

}  // namespace

Rechecks::Rechecks(boost::asio::io_context& loop, const Shares& shares, Devices& devices,
                   MemoryAudit& audit)
    : shares_(shares), devices_(devices), audit_(audit), on_(devices.count()), timer_(loop) {}

bool Rechecks::IsNeeded(Share& share, const MemoryRequests::Request& request,
                        const OnDevice& on) const {
  Member* member = share.FindMember(request.slot);
  if (member == nullptr || share.AuditedBytes(request.device) == 0) return false;
  if (devices_.UnansweredNs() > 0 || on.waiting.size() >= kMaxRechecked) return false;
  const bool recent = RealClock().NowNs() - last_ns_ < kRecheckEveryNs;
  if (recent && on.waiting.empty()) return false;
  const auto attempt = share.TryGrant(*member, request.device, request.needed_bytes);
  return attempt.verdict != policy::Ledger::Verdict::kGranted;
}

bool Rechecks::Hold(Share& share, MemoryRequests::Request& request) {
  const size_t device = share.config().devices[request.device].device;
  OnDevice& on = on_[device];
  if (!IsNeeded(share, request, on)) return false;
  on.waiting.emplace_back(share.id(), std::move(request));
  if (on.waiting.size() > 1) return true;
  last_ns_ = RealClock().NowNs();
  // The first that waits: whatever comes of NVML, all that wait are served then.
  timer_.expires_after(kRecheckWithin);
  timer_.async_wait([this](const boost::system::error_code& stopped) {
    for (size_t i = 0; !stopped && i < on_.size(); ++i) Serve(i);
  });
  if (on.under_way) return true;  // one that took too long for those who asked
  on.under_way = true;
  audit_.Recheck(device, [this, device] {
    on_[device].under_way = false;
    Serve(device);
  });
  return true;
}

void Rechecks::Serve(size_t device) {
  auto waiting = std::exchange(on_[device].waiting, {});
  for (auto& [share_id, request] : waiting) {
    Share* share = shares_.Find(share_id);
    if (share != nullptr) ask(*share, std::move(request));
  }
}

}  // namespace prorata::agent
