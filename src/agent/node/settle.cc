// What NVML shows of a process after it took memory that no call names the size of: a context, or
// what a library took. It is asked on the side, and answered as not measured when NVML takes too
// long: then the member keeps what it reserved, which is rather too much.
//
// What the audit found of a member stays charged as that, and only what is beyond it is the answer.
// (Were it charged by the member's own word from now on, a member that never charges it would make
// the audit begin anew with each message, and find any implicit memory.)

#include <spdlog/spdlog.h>

#include <boost/asio/steady_timer.hpp>
#include <chrono>

#include "agent/node/node.h"
#include "base/bytes.h"

namespace prorata::agent {
namespace {

// A member waits for the answer; it must not wait for a driver that hangs.
constexpr auto kMeasureWithin = std::chrono::milliseconds(200);
constexpr int kAttempts = 3;
constexpr uint32_t kMaxOfAMember = 16;  // under way

}  // namespace

struct Node::Settling {
  Settling(boost::asio::io_context& loop) : timer(loop) {}
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
  std::function<void(const wire::ContextSettled&)> then;
};

void Node::SettleContext(Share& share, Member& member, const wire::ContextMade& made,
                         std::function<void(const wire::ContextSettled&)> then) {
  auto settling = std::make_shared<Settling>(loop_);
  Settling& s = *settling;
  s.share_id = share.id();
  s.slot = member.slot;
  s.process = member.process;
  s.made = made;
  s.then = std::move(then);
  ++member.settling;
  const bool may_ask =
      member.usage && member.settling <= kMaxOfAMember && devices_.UnansweredNs() == 0;
  if (!may_ask) return FinishSettling(s, NotMeasured(s));
  s.timer.expires_after(kMeasureWithin);
  s.timer.async_wait([this, settling](const boost::system::error_code& stopped) {
    if (!stopped) FinishSettling(*settling, NotMeasured(*settling));
  });
  Measure(settling);
}

wire::ContextSettled Node::NotMeasured(const Settling& s) {
  return {s.made.id, s.made.device, wire::kNotMeasured, 0};
}

void Node::FinishSettling(Settling& s, const wire::ContextSettled& settled) {
  if (std::exchange(s.answered, true)) return;
  s.timer.cancel();
  Share* share = Find(s.share_id);
  Member* member = share != nullptr ? share->FindLiving(s.process) : nullptr;
  if (member != nullptr && member->slot == s.slot) --member->settling;
  s.then(settled);
}

// Asks NVML, with what the member is charged now; Settled looks whether it is the same after that.
void Node::Measure(const std::shared_ptr<Settling>& settling) {
  Settling& s = *settling;
  Share* share = Find(s.share_id);
  Member* member = share != nullptr ? share->FindLiving(s.process) : nullptr;
  if (member == nullptr || member->slot != s.slot || !member->usage) {
    return FinishSettling(s, NotMeasured(s));
  }
  const shm::DeviceUsage& usage = member->usage->device(s.made.device);
  s.used_bytes = usage.used_bytes.load();
  s.overhead_bytes = usage.overhead_bytes.load();
  // NVML's figure for a process is its contexts' alone only while nothing else of it is on the
  // device, that is, while `used` is all overhead: a charge comes before the driver's allocation
  // and goes after its free. Beside other memory the two are never read at one moment: threads that
  // allocate meanwhile would make the overhead too small (and take the share over its limit) or too
  // large for ever. Then the reservation stays, which is what earlier contexts took.
  const bool context = s.made.what == wire::kMadeContext;
  if (context && (s.used_bytes != s.overhead_bytes || s.made.reserved_bytes > s.overhead_bytes)) {
    return FinishSettling(s, NotMeasured(s));
  }
  devices_.ReadProcesses(share->config().devices[s.made.device].device,
                         [this, settling](const Devices::Reading<Devices::ByProcess>& reading) {
                           Settling& own = *settling;
                           if (own.answered) return;  // NVML was too slow
                           Share* its_share = Find(own.share_id);
                           Member* its =
                               its_share != nullptr ? its_share->FindLiving(own.process) : nullptr;
                           const bool there = its != nullptr && its->slot == own.slot && its->usage;
                           if (!there || !reading.value)
                             return FinishSettling(own, NotMeasured(own));
                           const auto found = reading.value->find(own.process.pid);
                           if (found == reading.value->end() || !found->second) {
                             return FinishSettling(own, NotMeasured(own));
                           }
                           const bool is_context = own.made.what == wire::kMadeContext;
                           is_context ? SettledContext(own, *its_share, *its, *found->second)
                                      : SettledOther(settling, *its_share, *its, *found->second);
                         });
}

// What a member took that it could not name. Its charges must not move while NVML is asked; those
// of memory that is not taken yet make the figure too small, never too large.
void Node::SettledOther(const std::shared_ptr<Settling>& settling, Share& share, Member& member,
                        uint64_t on_device) {
  Settling& s = *settling;
  const uint32_t index = s.made.device;
  const uint64_t used = member.usage->device(index).used_bytes.load();
  if (used != s.used_bytes) {
    if (++s.attempts < kAttempts) return Measure(settling);
    return FinishSettling(s, NotMeasured(s));
  }
  if (s.made.reserved_bytes > used) return FinishSettling(s, NotMeasured(s));
  wire::ContextSettled settled = NotMeasured(s);
  const uint64_t before = used - s.made.reserved_bytes;
  const uint64_t known = before + member.devices[index].audit.overhead_bytes();
  settled.overhead_bytes = on_device > known ? on_device - known : 0;
  const bool covered = settled.overhead_bytes <= s.made.reserved_bytes ||
                       memory_.Grant(share, member, index, before + settled.overhead_bytes) ==
                           wire::GrantResult::kGranted;
  settled.measured = covered ? wire::kTook : wire::kTookTooMuch;
  FinishSettling(s, settled);
}

void Node::SettledContext(Settling& s, Share& share, Member& member, uint64_t on_device) {
  const uint32_t index = s.made.device;
  const size_t number = share.config().devices[index].device;
  const shm::DeviceUsage& usage = member.usage->device(index);
  const uint64_t charged = s.overhead_bytes;
  if (usage.used_bytes.load() != charged || usage.overhead_bytes.load() != charged) {
    return FinishSettling(s, NotMeasured(s));
  }
  const uint64_t found = member.devices[index].audit.overhead_bytes();
  uint64_t overhead = on_device > found ? on_device - found : 0;
  const uint64_t before = charged - s.made.reserved_bytes;
  if (overhead > before) {
    devices_.LearnContextOverhead(number, overhead - before);
    for (const auto& [id, other] : shares_) {
      const auto other_index = other->IndexOf(number);
      if (!other_index) continue;
      other->limits()->devices[*other_index].context_overhead_bytes =
          devices_.ContextOverhead(number);
    }
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
  FinishSettling(s, {s.made.id, index, wire::kMeasured, overhead});
}

}  // namespace prorata::agent
