#pragma once

// A World (device_compute.h) whose clock, device and agent a test moves by hand, and what tests of
// the machines over it share.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "base/units.h"
#include "client/compute/gate.h"
#include "client/compute/lease_report.h"

namespace prorata::client {

inline constexpr int64_t kNever = INT64_MAX;

class FakeWorld {
 public:
  int64_t NowNs() const { return now_ns; }
  void Nap(int64_t ns) {
    now_ns += ns;
    ++naps;
    if (on_nap) on_nap();
  }
  int64_t HeartbeatLostNs() const { return heartbeat_lost_ns; }
  const shm::DeviceLimits& Limits(uint32_t) const { return limits; }
  shm::DeviceUsage& Usage(uint32_t) { return usage; }
  DeviceCompute& Compute(uint32_t) { return compute; }
  Estimates& estimates() { return estimates_; }
  bool Send(wire::MessageType type, const wire::LeaseEvent&) {
    sent.push_back(type);
    return true;
  }
  template <typename F>
  void ForEachWork(uint32_t, F&& f) {
    for (ContextWork* work : works) {
      if (work->listed != nullptr) f(*work);
    }
  }
  bool Capturing() { return capturing != 0; }
  bool MayRecord() { return capturing == 0; }
  void DoneRecording() {}
  void RecordGone(StreamRecord* record) { gone.push_back(record); }
  struct OwnCalls {
    explicit OwnCalls(FakeWorld&) {}
  };
  bool CreateEvent(CUevent* event) {
    *event = reinterpret_cast<CUevent>(&done_ns.emplace_back(0));
    return true;
  }
  client::Recorded Record(const StreamRecord& stream, CUevent event) {
    ++records;
    if (record_answer != Recorded::kYes) return record_answer;
    DoneNs(event) = std::max(now_ns, free_at_ns[&stream]);
    return Recorded::kYes;
  }
  bool Pending(CUevent event) {
    ++queries;
    return now_ns < DoneNs(event);
  }
  StreamState Ask(const StreamRecord& stream) {
    ++queries;
    return now_ns >= free_at_ns[&stream] ? StreamState::kIdle : StreamState::kAtWork;
  }
  bool Elapsed(CUevent from, CUevent to, int64_t* ns) {
    *ns = DoneNs(to) - DoneNs(from);
    return true;
  }

  int64_t& DoneNs(CUevent event) { return *reinterpret_cast<int64_t*>(event); }
  // What the stream has so far ends then.
  void EndAt(const StreamRecord& stream, int64_t end_ns) {
    free_at_ns[&stream] = end_ns;
    for (const Fence* fence = stream.first; fence != nullptr; fence = fence->next) {
      if (now_ns < DoneNs(fence->end)) DoneNs(fence->end) = end_ns;
    }
  }

  int64_t now_ns = 1 * kS;
  int64_t heartbeat_lost_ns = 0;
  uint32_t capturing = 0;
  int records = 0, queries = 0, naps = 0;
  std::function<void()> on_nap;  // what other threads do meanwhile
  Recorded record_answer = Recorded::kYes;
  std::vector<ContextWork*> works;
  std::vector<StreamRecord*> gone;
  shm::DeviceLimits limits = {};
  shm::DeviceUsage usage = {};
  DeviceCompute compute = {};
  std::deque<int64_t> done_ns;
  std::vector<wire::MessageType> sent;
  std::map<const StreamRecord*, int64_t> free_at_ns;

 private:
  Estimates estimates_;
};

class WorkTrackerTest : public testing::Test {
 protected:
  static constexpr uint32_t kOpen = shm::kLeaseOpen;
  static constexpr uint32_t kContended = shm::kLeaseOpen | shm::kLeaseContended;
  static constexpr uint32_t Word(uint32_t sequence, uint32_t bits) {
    return sequence << shm::kLeaseSequenceShift | bits;
  }

  struct Context {
    explicit Context(FakeWorld& world, size_t count = 2) : streams(count) {
      work.context.store(reinterpret_cast<CUcontext>(this));
      for (StreamRecord& stream : streams) {
        stream.work = &work;
        stream.owner.store(this);
      }
      world.works.push_back(&work);
    }
    ~Context() { FreeFences(&work); }
    ContextWork work = {};
    std::deque<StreamRecord> streams;
  };

  WorkTrackerTest() {
    world_.limits.lease.store(Word(1, kOpen));
    world_.limits.backlog_alone_us.store(20'000);
    world_.limits.backlog_contended_us.store(1'000);
    world_.limits.idle_report_us.store(200);
    world_.limits.compute_limit_ppm.store(1'000'000);
  }

  // One launch of a function, as launch.h makes it; what its stream has is done at `end_ns`.
  void Launch(Context& context, size_t stream, uint64_t key, int64_t end_ns) {
    StreamRecord& record = context.streams[stream];
    const uint32_t estimate_ns = world_.estimates().Lookup(key);
    const bool begins = BeginsBatch(&record, estimate_ns);
    if (begins) {
      ASSERT_TRUE(RaiseLaunching(world_, 0));
      tracker_.Begin(&record, estimate_ns);
    }
    world_.free_at_ns[&record] = end_ns;
    const Added added = AddLaunch(&record, &context, key, estimate_ns);
    if (added.opened) tracker_.Opened(&record, begins);
    if (added.due) tracker_.End(&record, estimate_ns == 0);
    if (begins) {
      tracker_.Returned(&record);
      world_.compute.launching.fetch_sub(1);
    }
  }
  // That, and a fence behind it.
  void LaunchFenced(Context& context, size_t stream, uint64_t key, int64_t end_ns) {
    Launch(context, stream, key, end_ns);
    tracker_.End(&context.streams[stream], false);
  }
  // The function is known to take so long.
  void Teach(uint64_t key, int64_t ns) {
    world_.estimates().Learn(key, static_cast<uint64_t>(ns), static_cast<uint64_t>(ns));
  }
  // The program waits until all of the stream is done, and it is.
  void Synchronize(Context& context, size_t stream) {
    StreamRecord& record = context.streams[stream];
    const auto mark = tracker_.Mark(&record);
    world_.now_ns = std::max(world_.now_ns, world_.free_at_ns[&record]);
    tracker_.Proven(&record, mark);
  }
  int64_t Poll() {
    const int64_t again_ns = TickDevice(world_, 0, world_.now_ns, HeartbeatLost(world_));
    world_.usage.looks_by_ns.store(world_.now_ns + again_ns);
    return again_ns;
  }
  // The helper looks when it said that it would.
  void Pass(int64_t ns) {
    for (const int64_t end_ns = world_.now_ns + ns; world_.now_ns < end_ns; Poll()) {
      const int64_t looks_ns = std::max(world_.now_ns + 1, world_.usage.looks_by_ns.load());
      world_.now_ns = std::min(end_ns, looks_ns);
    }
  }
  bool Busy() const { return world_.compute.occupancy.reasons() != 0; }
  bool Reported(wire::MessageType type) const {
    return std::count(world_.sent.begin(), world_.sent.end(), type) != 0;
  }
  uint64_t Persistent() const { return world_.usage.persistent_ns.load(); }
  uint64_t Measured() const { return world_.usage.device_time_ns.load(); }
  uint64_t Occupied() const { return world_.usage.occupied_ns.load(); }

  FakeWorld world_;
  WorkTracker<FakeWorld> tracker_{world_};
};

}  // namespace prorata::client
