#pragma once

// Writes down what happens on a device as DeviceLeases sees it: after each decision the state of
// every share is compared with what was last written of it, and only what is different is an entry.
// The policy knows nothing of it. No clock; not thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "agent/compute/trace_ring.h"
#include "policy/compute/lease_policy.h"

namespace prorata::agent {

class DeviceTrace {
 public:
  // A share, while it is on the device: DeviceLeases keeps it for us.
  struct Live {
    uint32_t lane = 0;
    api::TraceState state = api::TraceState::kIdle;
    int32_t lag_us = 0;  // of the last keyframe
    int64_t charged_ns = 0;
  };
  // What DeviceLeases knows of a share now.
  struct Seen {
    const policy::LeasePolicy::ShareState& state;
    int32_t priority = 0;
    bool contended = false;  // its lease is open, and others are there
    bool blocked = false;    // all that it has submitted lies behind a wait
    bool by_limit = false;   // it waits, and its own limit is why (as `prorata ps` has it)
    int64_t charged_ns = 0;
  };

  // All shares are shown, one by one, before the first is written: why one waits is seen by the
  // others.
  class Others {
   public:
    void Show(const Seen& seen);

   private:
    friend class DeviceTrace;
    bool any_runs_ = false, any_drains_ = false, any_waits_ = false;
    bool any_contended_ = false, any_co_runs_ = false, any_open_ = false;
    int32_t running_priority_ = 0;  // the highest
  };

  // `name`: of the share, for people.
  void Begin(Live& live, uint64_t share, int64_t now_ns);
  void Name(const Live& live, std::string name) { ring_.NameLane(live.lane, std::move(name)); }
  void End(const Live& live, int64_t now_ns);

  void Write(Live& live, const Seen& seen, const Others& others, int64_t now_ns) {
    const api::TraceState state = StateOf(seen, others);
    if (state != live.state) WriteState(api::TraceKind::kState, live, state, seen, now_ns);
  }
  void WriteDevice(const Others& others, int64_t now_ns) {
    const api::TraceMode mode = ModeOf(others);
    if (mode != mode_) WriteMode(mode, now_ns);
  }
  // The state goes on; written now and then, so that a trace may begin anywhere.
  void Keyframe(Live& live, const Seen& seen, const Others& others, int64_t now_ns);
  void KeyframeOfDevice(const Others& others, int64_t now_ns);

  void Audited(const Live& live, int64_t by_ns, int64_t now_ns);
  void Late(int64_t by_ns, int64_t now_ns);
  void Outage(int64_t now_ns);
  // `live` null: of the device.
  void Event(const Live* live, api::EventKind kind, int64_t now_ns);

  const TraceRing& ring() const { return ring_; }

  static api::TraceState StateOf(const Seen& seen, const Others& others);

 private:
  static api::TraceMode ModeOf(const Others& others);
  void WriteState(api::TraceKind kind, Live& live, api::TraceState state, const Seen& seen,
                  int64_t now_ns);
  void WriteMode(api::TraceMode mode, int64_t now_ns);

  TraceRing ring_;
  api::TraceMode mode_ = api::TraceMode::kIdle;
};

// What there is to tell whoever asks: the entries of the last `seconds`, or those after `after`.
// The names of lanes are filled in, the times of the reply are not.
api::TraceReply ReadTrace(const TraceRing& ring, const api::TraceRequest& request, int64_t now_ns,
                          size_t entries_max = api::kMaxTraceEntries);

}  // namespace prorata::agent
