#include "agent/memory/claims_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "agent/share/share_events.h"

namespace prorata::agent {
namespace {

// Three of twenty polls show a false claim: 0.3 s after one that stays, and within 3 s of one
// that changes all the time.
constexpr auto kClaimsEvery = std::chrono::milliseconds(100);

}  // namespace

void ClaimsWatch::Start() {
  Poll();
  timer_.expires_after(kClaimsEvery);
  timer_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) Start();
  });
}

void ClaimsWatch::Poll() {
  for (Share* share : shares_.All()) {
    for (uint32_t index = 0; index < share->device_count(); ++index) {
      for (Member* member : share->Members()) Judge(*share, *member, index);
    }
  }
}

void ClaimsWatch::Judge(Share& share, Member& member, uint32_t index) {
  if (!member.usage) return;
  const uint64_t limit = share.config().devices[index].memory_bytes;
  const uint64_t granted = share.ledger(index).grant_bytes(member.slot);
  const uint64_t claimed = member.usage->device(index).used_bytes;
  const auto verdict = member.devices[index].claims.Poll(claimed, std::max(limit, granted));
  if (verdict != policy::ExcessWatch::Verdict::kBegan) return;
  auto event = EventOf(api::EventKind::kFalseUsage, share, &member, index);
  event.used_bytes = claimed;
  event.detail = "nobody else is given less for it";
  events_.Add(std::move(event));
}

}  // namespace prorata::agent
