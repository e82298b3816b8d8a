#include "agent/share/events.h"

#include <algorithm>

namespace prorata::agent {
namespace {

using api::Event;

constexpr size_t kMaxText = 128;
constexpr size_t kMaxDetail = 512;  // a file's path, its line, and what is wrong there

std::string KeyOf(const Event& event) {
  return api::NameOf(event.kind) + '\n' + event.share + '\n' + event.uuid + '\n' +
         std::to_string(event.pid.value_or(0)) + '\n' + event.why;
}

uint64_t SumOf(uint64_t a, uint64_t b) { return a + b < a ? ~uint64_t{0} : a + b; }

}  // namespace

void Events::Add(Event event) {
  for (std::string* text :
       {&event.share, &event.uuid, &event.command, &event.why, &event.outcome}) {
    if (text->size() > kMaxText) text->resize(kMaxText);
  }
  if (event.detail.size() > kMaxDetail) event.detail.resize(kMaxDetail);
  uint64_t& happened = counts_[static_cast<size_t>(event.kind)];
  happened = SumOf(happened, event.count);
  event.sequence = ++last_sequence_;
  event.time_unix_ms = unix_ms_();
  ring_.push_back(std::move(event));
  if (ring_.size() > kKept) ring_.pop_front();
  if (on_kept) on_kept(ring_.back());
}

void Events::AddCounted(Event event, int64_t window_ns) {
  const int64_t now_ns = clock_.NowNs();
  const std::string key = KeyOf(event);
  const auto found = held_back_.find(key);
  if (found != held_back_.end()) {
    HeldBack& held = found->second;
    held.count = SumOf(held.count, event.count);
    held.event = std::move(event);
    return;
  }
  if (held_back_.size() >= kMaxHeldBack) {
    // Bounded, whoever makes so many different ones: the oldest's window ends early.
    const auto oldest = std::min_element(
        held_back_.begin(), held_back_.end(),
        [](const auto& a, const auto& b) { return a.second.until_ns < b.second.until_ns; });
    Event last = std::move(oldest->second.event);
    last.count = oldest->second.count;
    held_back_.erase(oldest);
    if (last.count > 0) Add(std::move(last));
  }
  held_back_[key] = {now_ns + window_ns, window_ns, {}, 0};
  Add(std::move(event));
}

void Events::Tick() {
  const int64_t now_ns = clock_.NowNs();
  for (auto at = held_back_.begin(); at != held_back_.end();) {
    HeldBack& held = at->second;
    if (now_ns < held.until_ns) {
      ++at;
      continue;
    }
    if (held.count == 0) {
      at = held_back_.erase(at);
      continue;
    }
    held.event.count = std::exchange(held.count, 0);
    held.until_ns = now_ns + held.window_ns;
    Add(std::move(held.event));
    ++at;
  }
}

Events::Batch Events::After(uint64_t after, size_t most, const std::string& share) const {
  if (after > last_sequence_) after = 0;
  Batch batch;
  batch.next = after;
  const uint64_t first = last_sequence_ - ring_.size() + 1;
  if (after + 1 < first) {
    batch.lost = first - after - 1;
    batch.next = first - 1;
  }
  for (size_t i = batch.next + 1 - first; i < ring_.size() && batch.events.size() < most; ++i) {
    batch.next = ring_[i].sequence;
    if (share.empty() || ring_[i].share == share) batch.events.push_back(ring_[i]);
  }
  return batch;
}

}  // namespace prorata::agent
