#include "agent/compute/device_trace.h"

#include <algorithm>
#include <limits>

namespace prorata::agent {
namespace {

using api::TraceEntry;
using api::TraceKind;
using api::TraceMode;
using api::TraceState;
using Phase = policy::LeasePolicy::Phase;

// Keyframes come each tenth of a second, and a busy loop is late now and then.
constexpr int64_t kKeyframeWithinNs = 250'000'000;

template <typename Us>
Us ToUs(double ns) {
  const double us = ns / 1e3;
  return static_cast<Us>(std::clamp(us, static_cast<double>(std::numeric_limits<Us>::min()),
                                    static_cast<double>(std::numeric_limits<Us>::max())));
}

TraceEntry EntryOf(TraceKind kind, int64_t now_ns, uint32_t lane = 0, int64_t value_ns = 0) {
  TraceEntry entry = {};
  entry.kind = kind;
  entry.time_ns = now_ns;
  entry.lane = lane;
  entry.value_ns = value_ns;
  return entry;
}

}  // namespace

void DeviceTrace::Others::Show(const Seen& seen) {
  switch (seen.state.phase) {
    case Phase::kRunning:
      any_open_ = true;
      any_contended_ = any_contended_ || seen.contended;
      any_co_runs_ = any_co_runs_ || seen.state.co_running;
      if (seen.state.idle) break;
      running_priority_ = any_runs_ ? std::max(running_priority_, seen.priority) : seen.priority;
      any_runs_ = true;
      break;
    case Phase::kDraining:
      any_drains_ = true;
      break;
    case Phase::kStalled:
    case Phase::kRunnable:
      any_waits_ = true;
      break;
    case Phase::kIdle:
      break;
  }
}

TraceState DeviceTrace::StateOf(const Seen& seen, const Others& others) {
  switch (seen.state.phase) {
    case Phase::kIdle:
      return TraceState::kIdle;
    case Phase::kRunning:
      if (seen.state.idle) return TraceState::kHolds;
      if (seen.state.co_running) return TraceState::kCoRuns;
      return seen.contended ? TraceState::kRuns : TraceState::kRunsFreely;
    case Phase::kDraining:
      return TraceState::kDrains;
    case Phase::kStalled:
      return seen.blocked && !seen.state.stopped ? TraceState::kBlocked : TraceState::kStalled;
    case Phase::kRunnable:
      break;
  }
  if (seen.by_limit) return TraceState::kWaitsLimit;
  if (others.any_runs_ && others.running_priority_ > seen.priority) {
    return TraceState::kWaitsPriority;
  }
  if (others.any_runs_) return TraceState::kWaitsOthers;
  if (others.any_drains_) return TraceState::kWaitsDrain;
  if (seen.state.gang) return TraceState::kWaitsGang;
  return seen.state.lag_ns < 0 ? TraceState::kWaitsPause : TraceState::kWaitsOthers;
}

TraceMode DeviceTrace::ModeOf(const Others& others) {
  if (others.any_co_runs_) return TraceMode::kCoRunSet;
  if (others.any_contended_ || others.any_drains_ || others.any_waits_) {
    return TraceMode::kScheduled;
  }
  return others.any_open_ ? TraceMode::kFree : TraceMode::kIdle;
}

void DeviceTrace::Begin(Live& live, uint64_t share, int64_t now_ns) {
  live = {.lane = ring_.AddLane(share, "share " + std::to_string(share))};
  ring_.Write(EntryOf(TraceKind::kShareBegun, now_ns, live.lane));
}

void DeviceTrace::End(const Live& live, int64_t now_ns) {
  ring_.Write(EntryOf(TraceKind::kShareEnded, now_ns, live.lane));
  ring_.EndLane(live.lane);
}

void DeviceTrace::WriteState(TraceKind kind, Live& live, TraceState state, const Seen& seen,
                             int64_t now_ns) {
  live.state = state;
  TraceEntry entry = EntryOf(kind, now_ns, live.lane, seen.charged_ns);
  entry.state = state;
  entry.lag_us = ToUs<int32_t>(seen.state.lag_ns);
  entry.gang = seen.state.gang;
  entry.held_us = ToUs<uint32_t>(static_cast<double>(seen.state.limited_ns));
  ring_.Write(entry);
}

void DeviceTrace::WriteMode(TraceMode mode, int64_t now_ns) {
  mode_ = mode;
  TraceEntry entry = EntryOf(TraceKind::kMode, now_ns);
  entry.mode = mode;
  ring_.Write(entry);
}

void DeviceTrace::Keyframe(Live& live, const Seen& seen, const Others& others, int64_t now_ns) {
  const auto lag_us = ToUs<int32_t>(seen.state.lag_ns);
  const TraceState state = StateOf(seen, others);
  // Of a share that does nothing there is nothing to go on.
  const bool same = lag_us == live.lag_us && seen.charged_ns == live.charged_ns;
  if (same && state == TraceState::kIdle && live.state == TraceState::kIdle) return;
  live.lag_us = lag_us;
  live.charged_ns = seen.charged_ns;
  WriteState(TraceKind::kKeyframe, live, state, seen, now_ns);
}

void DeviceTrace::KeyframeOfDevice(const Others& others, int64_t now_ns) {
  const TraceMode mode = ModeOf(others);
  if (mode != TraceMode::kIdle || mode_ != TraceMode::kIdle) WriteMode(mode, now_ns);
}

void DeviceTrace::Audited(const Live& live, int64_t by_ns, int64_t now_ns) {
  ring_.Write(EntryOf(TraceKind::kAudit, now_ns, live.lane, by_ns));
}

void DeviceTrace::Late(int64_t by_ns, int64_t now_ns) {
  ring_.Write(EntryOf(TraceKind::kLate, now_ns, 0, by_ns));
}

void DeviceTrace::Outage(int64_t now_ns) { ring_.Write(EntryOf(TraceKind::kOutage, now_ns)); }

void DeviceTrace::Event(const Live* live, api::EventKind kind, int64_t now_ns) {
  TraceEntry entry = EntryOf(TraceKind::kEvent, now_ns, live == nullptr ? 0 : live->lane);
  entry.event = kind;
  ring_.Write(entry);
}

api::TraceReply ReadTrace(const TraceRing& ring, const api::TraceRequest& request, int64_t now_ns,
                          size_t entries_max) {
  api::TraceReply reply;
  reply.now_ns = now_ns;
  reply.last = ring.last();
  uint64_t from = 0;
  if (request.after) {
    // A sequence that was never given is another agent's.
    const uint64_t after = *request.after > ring.last() ? 0 : *request.after;
    from = std::max(after + 1, ring.oldest());
    reply.lost = from - (after + 1);
  } else {
    from =
        ring.FirstSince(now_ns - static_cast<int64_t>(request.seconds * 1e9) - kKeyframeWithinNs);
  }
  const uint64_t to = std::min(ring.last() + 1, from + entries_max);
  for (uint64_t sequence = from; sequence < to; ++sequence) {
    const TraceEntry& entry = ring.At(sequence);
    reply.entries.push_back(entry);
    const TraceRing::Lane* lane = ring.FindLane(entry.lane);
    if (lane != nullptr) reply.shares[entry.lane].name = lane->name;
  }
  reply.next = to - 1;
  return reply;
}

}  // namespace prorata::agent
