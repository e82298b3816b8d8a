#include "agent/memory/settle.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "base/bytes.h"

namespace prorata::agent {
namespace {

// A member waits for the answer; it must not wait for a driver that hangs.
constexpr auto kMeasureWithin = std::chrono::milliseconds(200);
constexpr int kMeasureAttempts = 3;
constexpr uint32_t kMaxSettlingOfAMember = 16;  // under way

}  // namespace

struct ContextSettling::Request {
  Request(boost::asio::io_context& loop) : timer(loop) {}
  uint64_t share_id = 0;
  uint32_t slot = 0;
  ProcessId process;
  wire::ContextMade made;
  // The member's words when NVML was asked.
  uint64_t used_bytes = 0;
  uint64_t overhead_bytes = 0;
  int attempts = 0;
  bool answered = false;
  boost::asio::steady_timer timer;
  Then then;
};

void ContextSettling::Settle(Share& share, Member& member, const wire::ContextMade& made,
                             Then then) {
  auto request = std::make_shared<Request>(loop_);
  Request& r = *request;
  r.share_id = share.id();
  r.slot = member.slot;
  r.process = member.process;
  r.made = made;
  r.then = std::move(then);
  ++member.settling;
  const bool may_ask =
      member.usage && member.settling <= kMaxSettlingOfAMember && devices_.UnansweredNs() == 0;
  if (!may_ask) return Finish(r, NotMeasured(r));
  r.timer.expires_after(kMeasureWithin);
  r.timer.async_wait([this, request](const boost::system::error_code& stopped) {
    if (!stopped) Finish(*request, NotMeasured(*request));
  });
  Measure(request);
}

ContextSettling::Measured ContextSettling::Find(const Request& r) const {
  Share* share = shares_.Find(r.share_id);
  Member* member = share != nullptr ? share->FindLiving(r.process) : nullptr;
  return member != nullptr && member->slot == r.slot ? Measured{share, member} : Measured{};
}

wire::ContextSettled ContextSettling::NotMeasured(const Request& r) {
  return {r.made.id, r.made.device, wire::kNotMeasured, 0};
}

void ContextSettling::Finish(Request& r, const wire::ContextSettled& settled) {
  if (std::exchange(r.answered, true)) return;
  r.timer.cancel();
  if (Member* member = Find(r).member) --member->settling;
  r.then(settled);
}

// Asks NVML, with what the member is charged now; OnFigures looks whether it is the same after
// that.
void ContextSettling::Measure(const std::shared_ptr<Request>& request) {
  Request& r = *request;
  const auto [share, member] = Find(r);
  if (member == nullptr || !member->usage) return Finish(r, NotMeasured(r));
  const shm::DeviceUsage& usage = member->usage->device(r.made.device);
  r.used_bytes = usage.used_bytes.load();
  r.overhead_bytes = usage.overhead_bytes.load();
  // NVML's figure for a process is its contexts' alone only while nothing else of it is on the
  // device, that is, while `used` is all overhead: a charge comes before the driver's allocation
  // and goes after its free. Beside other memory the two are never read at one moment: threads that
  // allocate meanwhile would make the overhead too small (and take the share over its limit) or too
  // large for ever. Then the reservation stays, which is what earlier contexts took.
  const bool context = r.made.what == wire::kMadeContext;
  if (context && (r.used_bytes != r.overhead_bytes || r.made.reserved_bytes > r.overhead_bytes)) {
    return Finish(r, NotMeasured(r));
  }
  devices_.ReadProcesses(share->config().devices[r.made.device].device,
                         [this, request](const Devices::Reading<Devices::ByProcess>& reading) {
                           OnFigures(request, reading);
                         });
}

void ContextSettling::OnFigures(const std::shared_ptr<Request>& request,
                                const Devices::Reading<Devices::ByProcess>& reading) {
  Request& r = *request;
  if (r.answered) return;  // NVML was too slow
  const auto [share, member] = Find(r);
  if (member == nullptr || !member->usage || !reading.value) return Finish(r, NotMeasured(r));
  const auto found = reading.value->find(r.process.pid);
  if (found == reading.value->end() || !found->second) return Finish(r, NotMeasured(r));
  r.made.what == wire::kMadeContext ? SettleContext(r, *share, *member, *found->second)
                                    : SettleOther(request, *share, *member, *found->second);
}

// What a member took that it could not name. Its charges must not move while NVML is asked; those
// of memory that is not taken yet make the figure too small, never too large.
void ContextSettling::SettleOther(const std::shared_ptr<Request>& request, Share& share,
                                  Member& member, uint64_t on_device) {
  Request& r = *request;
  const uint32_t index = r.made.device;
  const uint64_t used = member.usage->device(index).used_bytes.load();
  if (used != r.used_bytes) {
    if (++r.attempts < kMeasureAttempts) return Measure(request);
    return Finish(r, NotMeasured(r));
  }
  if (r.made.reserved_bytes > used) return Finish(r, NotMeasured(r));
  wire::ContextSettled settled = NotMeasured(r);
  const uint64_t before = used - r.made.reserved_bytes;
  const uint64_t known = before + member.devices[index].audit.overhead_bytes();
  settled.overhead_bytes = on_device > known ? on_device - known : 0;
  const bool covered = settled.overhead_bytes <= r.made.reserved_bytes ||
                       memory_.Grant(share, member, index, before + settled.overhead_bytes) ==
                           wire::GrantResult::kGranted;
  settled.measured = covered ? wire::kTook : wire::kTookTooMuch;
  Finish(r, settled);
}

void ContextSettling::SettleContext(Request& r, Share& share, Member& member, uint64_t on_device) {
  const uint32_t index = r.made.device;
  const shm::DeviceUsage& usage = member.usage->device(index);
  const uint64_t charged = r.overhead_bytes;
  if (usage.used_bytes.load() != charged || usage.overhead_bytes.load() != charged) {
    return Finish(r, NotMeasured(r));
  }
  const uint64_t found = member.devices[index].audit.overhead_bytes();
  uint64_t overhead = on_device > found ? on_device - found : 0;
  const uint64_t before = charged - r.made.reserved_bytes;
  if (overhead > before) {
    LearnContextOverhead(share.config().devices[index].device, overhead - before);
  }
  if (overhead > charged &&
      memory_.Grant(share, member, index, overhead) != wire::GrantResult::kGranted) {
    const uint64_t covered = share.ledger(index).grant_bytes(member.slot);
    // Once: a member may ask as often as it likes.
    if (!std::exchange(member.reported_uncovered_context, true)) {
      spdlog::warn(
          "share '{}': a context of process {} took {}, of which the share can cover only {}",
          share.config().name, member.process.pid, FormatBytes(overhead), FormatBytes(covered));
    }
    overhead = std::max(charged, std::min(covered, overhead));
  }
  Finish(r, {r.made.id, index, wire::kMeasured, overhead});
}

// What members of all shares reserve for the next one.
void ContextSettling::LearnContextOverhead(size_t device, uint64_t bytes) {
  devices_.LearnContextOverhead(device, bytes);
  for (const auto& [share, index] : shares_.On(device)) {
    share->limits()->devices[index].context_overhead_bytes = devices_.ContextOverhead(device);
  }
}

}  // namespace prorata::agent
