#pragma once

// The last events of this agent (api/event.h), for whoever asks or follows: a ring of bounded
// length, so that neither a program that probes for memory nor a follower that does not read can
// make the agent grow or wait. A follower keeps its place by sequence; what the ring has lost
// before it came is reported as a number.
//
// Time comes from a clock that is given; no I/O. Not thread-safe: the agent is one thread.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "api/event.h"
#include "base/clock.h"

namespace prorata::agent {

class Events {
 public:
  static constexpr size_t kKept = 1000;
  static constexpr int64_t kWindowNs = kNsPerS;
  static constexpr size_t kMaxHeldBack = 1024;

  // `unix_ms`: the time of day, for people. `clock` must stay.
  Events(const Clock& clock, std::function<int64_t()> unix_ms)
      : clock_(clock), unix_ms_(std::move(unix_ms)) {}

  // Keeps the event, with its sequence and time. Texts longer than 128 bytes are cut.
  void Add(api::Event event);

  // As Add, for what a program can repeat as often as it likes: of all events that are alike in
  // kind, share, device, process and why, the first is kept at once, and then one a window that
  // stands for all of that window (its `count` is their sum, the rest is the last one's).
  void AddCounted(api::Event event, int64_t window_ns = kWindowNs);
  // Keeps what AddCounted held back and is due. To be called every tenth of a second or so.
  void Tick();

  struct Batch {
    std::vector<api::Event> events;
    uint64_t lost = 0;  // events after `after` that the ring does not have any more
    uint64_t next = 0;  // to be given as `after` the next time
  };
  // The events after sequence `after`, at most `most`, of one share (empty: of all). A sequence
  // that was never given counts as 0: it is another agent's.
  Batch After(uint64_t after, size_t most = kKept, const std::string& share = "") const;
  uint64_t last_sequence() const { return last_sequence_; }
  // Of each kind: how often it happened, over all events that were ever kept, with their counts.
  const api::EventCounts& counts() const { return counts_; }

  // Called after every event that was kept; must not call back at once.
  std::function<void(const api::Event&)> on_kept;

 private:
  struct HeldBack {
    int64_t until_ns = 0;
    int64_t window_ns = 0;
    api::Event event;
    uint64_t count = 0;  // 0: nothing happened since the last was kept
  };

  const Clock& clock_;
  std::function<int64_t()> unix_ms_;
  std::deque<api::Event> ring_;
  uint64_t last_sequence_ = 0;
  api::EventCounts counts_{};
  std::map<std::string, HeldBack> held_back_;
};

}  // namespace prorata::agent
