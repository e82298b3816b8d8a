#pragma once

// A World (member_compute.h) whose clock, device and agent a test moves by hand, and what tests of
// the machines over it share.

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "client/fence_machine.h"
#include "client/launch_gate.h"
#include "client/launch_steps.h"
#include "client/lease_tick.h"

namespace prorata::client {

inline constexpr int64_t kMs = 1'000'000, kS = 1'000'000'000;
inline constexpr int64_t kNever = INT64_MAX;

class FakeWorld {
 public:
  int64_t NowNs() const { return now_ns; }
  int64_t AgentSilentNs() const { return 0; }
  const protocol::DeviceLimits& Limits(uint32_t) const { return limits; }
  protocol::DeviceUsage& Usage(uint32_t) { return usage; }
  DeviceCompute& Compute(uint32_t) { return compute; }
  Estimates& estimates() { return estimates_; }
  bool Send(protocol::MessageType type, const protocol::LeaseEvent&) {
    sent.push_back(type);
    return true;
  }
  bool PlanLook(uint32_t, int64_t at_ns, int64_t by_ns) {
    compute.look_ns = at_ns;
    compute.look_by_ns = by_ns;
    if (change_lease_to != 0) limits.lease.store(std::exchange(change_lease_to, 0));
    return by_ns != 0;
  }
  void MoveLook(uint32_t, int64_t at_ns) { compute.look_ns = at_ns; }
  struct OwnCalls {
    explicit OwnCalls(FakeWorld&) {}
  };
  bool CreateEvent(CUevent* event) {
    *event = reinterpret_cast<CUevent>(&done_ns.emplace_back(0));
    return true;
  }
  bool Record(const StreamRecord& stream, CUevent event) {
    DoneNs(event) = std::max(now_ns, free_at_ns[&stream]);
    return true;
  }
  bool Pending(CUevent event) { return now_ns < DoneNs(event); }
  bool Elapsed(CUevent from, CUevent to, int64_t* ns) {
    *ns = DoneNs(to) - DoneNs(from);
    return true;
  }

  int64_t& DoneNs(CUevent event) { return *reinterpret_cast<int64_t*>(event); }
  // What the stream has so far ends then.
  void EndAt(const StreamRecord& stream, int64_t end_ns) {
    free_at_ns[&stream] = end_ns;
    for (const Slot& slot : stream.ring->slots) {
      if (slot.stream == &stream && slot.references > 0 && Pending(slot.end))
        DoneNs(slot.end) = end_ns;
    }
  }

  int64_t now_ns = 1 * kS;
  uint32_t change_lease_to = 0;  // in the next PlanLook
  protocol::DeviceLimits limits = {};
  protocol::DeviceUsage usage = {};
  DeviceCompute compute = {};
  std::deque<int64_t> done_ns;
  std::vector<protocol::MessageType> sent;
  std::map<const StreamRecord*, int64_t> free_at_ns;

 private:
  Estimates estimates_;
};

class FenceMachineTest : public testing::Test {
 protected:
  struct Context {
    Context() {
      ClearRing(ring.get());
      ring->context.store(reinterpret_cast<CUcontext>(this));
      for (StreamRecord& stream : streams) {
        stream.ring = ring.get();
        stream.open_slot = stream.last_slot = -1;
      }
    }
    std::unique_ptr<Ring> ring = std::make_unique<Ring>();
    StreamRecord streams[2] = {};
  };

  FenceMachineTest() {
    world_.limits.lease.store(protocol::kLeaseOpen);
    world_.limits.backlog_alone_us.store(20'000);
  }

  // One launch of a function, fenced at once; its work is done at `end_ns`.
  void Launch(Context& context, int stream, uint64_t key, int64_t end_ns) {
    StreamRecord& record = context.streams[stream];
    FenceMachine<FakeWorld> fences(world_);
    uint32_t estimate_ns = world_.estimates().Lookup(key);
    ASSERT_TRUE(RaiseLaunching(world_, &record));
    estimate_ns = PrepareBatch(fences, &record, estimate_ns);
    world_.free_at_ns[&record] = end_ns;
    AddLaunch(&record, this, key, estimate_ns);
    fences.EndBatch(&record, estimate_ns == 0);
    record.launching.fetch_sub(1);
  }
  // The function is known to take so long.
  void Teach(uint64_t key, int64_t ns) {
    world_.estimates().Learn(key, static_cast<uint64_t>(ns), static_cast<uint64_t>(ns));
  }
  void Look(std::initializer_list<Context*> contexts) {
    for (Context* context : contexts) FenceMachine<FakeWorld>(world_).Harvest(context->ring.get());
    TickDevice(world_, 0, world_.now_ns, false, [&](uint32_t) {
      OpenWork open;
      for (const Context* context : contexts) {
        for (const StreamRecord& stream : context->streams) open.Add(stream);
        open.Add(*context->ring);
      }
      return open;
    });
  }
  // Looks every 100 ms, as the helper does at the least.
  void Pass(int64_t ns, std::initializer_list<Context*> contexts) {
    for (const int64_t end_ns = world_.now_ns + ns; world_.now_ns < end_ns;) {
      world_.now_ns += 100 * kMs;
      Look(contexts);
    }
  }
  uint64_t Persistent() const { return world_.usage.persistent_ns.load(); }
  uint64_t Charged() const { return world_.usage.device_time_ns.load(); }

  FakeWorld world_;
};

}  // namespace prorata::client
