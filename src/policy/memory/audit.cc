#include "policy/memory/audit.h"

#include <algorithm>
#include <bit>

#include "base/bytes.h"

namespace prorata::policy {

namespace {

uint64_t Beyond(uint64_t on_device, uint64_t charged_before, uint64_t charged_after) {
  const uint64_t charged = std::max(charged_before, charged_after);
  return on_device > charged ? on_device - charged : 0;
}

}  // namespace

uint64_t OverheadAudit::Sample(uint64_t on_device, uint64_t charged_before,
                               uint64_t charged_after) {
  const uint64_t beyond = Beyond(on_device, charged_before, charged_after);
  std::rotate(last_.begin(), last_.begin() + 1, last_.end());
  last_.back() = beyond;
  count_ = std::min(count_ + 1, kSamples);
  // Less is believed at once: it was seen with nothing beyond it. More must be seen again and
  // again.
  overhead_bytes_ = count_ < kSamples ? std::min(overhead_bytes_, beyond)
                                      : *std::min_element(last_.begin(), last_.end());
  return overhead_bytes_;
}

uint64_t OverheadAudit::Recheck(uint64_t on_device, uint64_t charged_before,
                                uint64_t charged_after) {
  const uint64_t beyond = Beyond(on_device, charged_before, charged_after);
  if (beyond >= overhead_bytes_) return overhead_bytes_;
  // The row of samples must not bring it back by what was there before.
  last_.fill(beyond);
  overhead_bytes_ = beyond;
  return overhead_bytes_;
}

void OverheadAudit::Set(uint64_t overhead_bytes) {
  last_ = {};
  count_ = 0;
  overhead_bytes_ = overhead_bytes;
}

void DeviceBaseline::LearnIdle(uint64_t on_device) {
  idle_bytes_ = std::min(idle_bytes_.value_or(on_device), on_device);
}

std::optional<uint64_t> DeviceBaseline::OfMembers(uint64_t on_device) const {
  if (!idle_bytes_) return std::nullopt;
  return on_device > *idle_bytes_ ? on_device - *idle_bytes_ : 0;
}

uint64_t ExcessWatch::FarAbove(uint64_t limit_bytes) {
  const uint64_t margin = std::max(limit_bytes / 8, 64 * kMiB);
  return limit_bytes > ~uint64_t{0} - margin ? ~uint64_t{0} : limit_bytes + margin;
}

ExcessWatch::Verdict ExcessWatch::Poll(uint64_t held_bytes, uint64_t limit_bytes) {
  const uint64_t far = FarAbove(limit_bytes);
  above_ = held_bytes > far ? above_ + 1 : 0;
  if (!on_ && above_ >= kPolls) {
    on_ = true;
    return Verdict::kBegan;
  }
  // Half of the way back: what hovers about the mark is one episode.
  if (on_ && held_bytes <= limit_bytes + (far - limit_bytes) / 2) {
    on_ = false;
    return Verdict::kEnded;
  }
  return Verdict::kNothing;
}

ExcessWatch::Verdict ClaimWatch::Poll(uint64_t claimed_bytes, uint64_t limit_bytes) {
  constexpr uint32_t kLast = (uint32_t{1} << kPolls) - 1;
  const bool far = claimed_bytes > ExcessWatch::FarAbove(limit_bytes);
  found_ = (found_ << 1 | static_cast<uint32_t>(far)) & kLast;
  if (!on_ && std::popcount(found_) >= static_cast<int>(kFound)) {
    on_ = true;
    return ExcessWatch::Verdict::kBegan;
  }
  if (on_ && found_ == 0) {
    on_ = false;
    return ExcessWatch::Verdict::kEnded;
  }
  return ExcessWatch::Verdict::kNothing;
}

bool Standstill::Poll(uint64_t bytes, int64_t now_ns) {
  if (polls_ == 0 || bytes < least_bytes_) {
    least_bytes_ = bytes;
    since_ns_ = now_ns;
    polls_ = 0;
  }
  ++polls_;
  return polls_ >= kPolls && now_ns - since_ns_ >= kNs;
}

}  // namespace prorata::policy
