// What is done with fences, on a world made of numbers: streams are done when the test says.

#include "client/fence_machine.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "client/launch_gate.h"
#include "client/launch_steps.h"
#include "client/lease_tick.h"

namespace prorata::client {
namespace {

constexpr int64_t kMs = 1'000'000, kS = 1'000'000'000;
constexpr int64_t kNever = INT64_MAX;

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
  void PlanLook(uint32_t, int64_t at_ns, int64_t by_ns) {
    compute.look_ns = at_ns;
    compute.look_by_ns = by_ns;
  }
  void PutOffLook(uint32_t, int64_t at_ns) { compute.look_ns = at_ns; }
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

TEST_F(FenceMachineTest, AKernelThatNeverEndsIsTakenForPersistentUntilItDoes) {
  Context context;
  Launch(context, 0, 1, kNever);
  Look({&context});
  Pass(10 * kS, {&context});
  EXPECT_EQ(Persistent(), 0u) << "it was not suspected at once";
  Pass(2 * kS, {&context});
  EXPECT_EQ(Persistent(), static_cast<uint64_t>(12 * kS));
  Launch(context, 1, 3, world_.now_ns + kMs);
  Pass(1 * kS, {&context});
  EXPECT_EQ(Persistent(), static_cast<uint64_t>(13 * kS)) << "work of another stream is done";
  world_.EndAt(context.streams[0], world_.now_ns + 50 * kMs);
  Pass(100 * kMs, {&context});
  EXPECT_EQ(Persistent(), 0u);
}

// Time-sliced, each measures the other's time too.
TEST_F(FenceMachineTest, ContextsThatRunAtOnceAreChargedOnce) {
  Context a, b;
  for (int i = 0; i < 50; ++i) {
    Launch(a, 0, 1, world_.now_ns + 100 * kMs);
    Launch(b, 0, 2, world_.now_ns + 100 * kMs);
    Pass(100 * kMs, {&a, &b});
  }
  EXPECT_EQ(Charged(), static_cast<uint64_t>(5 * kS));
  // One after the other, harvested at once.
  Launch(a, 0, 1, world_.now_ns + 40 * kMs);
  Launch(b, 0, 2, world_.now_ns + 80 * kMs);
  const Slot& second = b.ring->slots[b.streams[0].last_slot];
  world_.DoneNs(second.start) = world_.now_ns + 40 * kMs;
  Pass(100 * kMs, {&a, &b});
  EXPECT_EQ(Charged(), static_cast<uint64_t>(5 * kS + 80 * kMs));
}

TEST_F(FenceMachineTest, ItIsGoneWithItsContext) {
  Context context;
  Launch(context, 0, 1, kNever);
  Look({&context});
  Pass(12 * kS, {&context});
  EXPECT_NE(Persistent(), 0u);
  FenceMachine<FakeWorld>(world_).Discard(context.ring.get());
  Look({&context});
  EXPECT_EQ(Persistent(), 0u);
  EXPECT_EQ(world_.compute.contexts.at_work(), 0u);
}

TEST_F(FenceMachineTest, AQueueOfKernelsIsNone) {
  Context context;
  for (int i = 0; i < 20; ++i) Launch(context, 0, 1, world_.now_ns + (i + 1) * 3 * kS);
  Look({&context});
  for (int i = 0; i < 600; ++i) {
    Pass(100 * kMs, {&context});
    ASSERT_EQ(Persistent(), 0u);
  }
}

TEST_F(FenceMachineTest, WhatHasNotBegunIsNone) {
  Context context;
  // Behind a wait, a host function or a semaphore.
  context.streams[0].waits.store(1);
  world_.free_at_ns[&context.streams[0]] = kNever;
  Launch(context, 0, 1, kNever);
  // Behind what nobody told us of: its start is not done.
  world_.free_at_ns[&context.streams[1]] = kNever;
  Launch(context, 1, 1, kNever);
  Look({&context});
  Pass(60 * kS, {&context});
  EXPECT_EQ(Persistent(), 0u);
  // From when it begins, it is one.
  for (const int stream : {0, 1}) {
    const Slot& slot = context.ring->slots[context.streams[stream].last_slot];
    world_.DoneNs(slot.start) = world_.now_ns;
  }
  Pass(9 * kS, {&context});
  EXPECT_EQ(Persistent(), 0u);
  Pass(4 * kS, {&context});
  EXPECT_NEAR(static_cast<double>(Persistent()), 13e9, 1e9);
}

TEST_F(FenceMachineTest, BesideOthersOnlyItsPartOfTheTimeCounts) {
  Context context, other;
  world_.limits.members_at_work.store(3);
  Launch(context, 0, 1, kNever);
  Look({&context});
  Pass(30 * kS, {&context});
  EXPECT_EQ(Persistent(), 0u) << "two others, who have two thirds of the device";
  Pass(2 * kS, {&context});
  EXPECT_NE(Persistent(), 0u);
  world_.EndAt(context.streams[0], world_.now_ns);
  Launch(other, 0, 2, world_.now_ns + 40 * kS);
  Launch(context, 0, 1, kNever);
  Pass(39 * kS, {&context, &other});
  EXPECT_EQ(Persistent(), 0u) << "and a second context of its own";
  Pass(2 * kS, {&context, &other});
  EXPECT_EQ(world_.compute.contexts.at_work(), 1u);
}

TEST_F(FenceMachineTest, AStoppedProcessHasNone) {
  Context context;
  Launch(context, 0, 1, kNever);
  Look({&context});
  Pass(2 * kS, {&context});
  for (int i = 0; i < 9; ++i) {
    world_.now_ns += 600 * kS;  // stopped, the device perhaps with it: in a debugger, say
    Look({&context});
  }
  EXPECT_EQ(Persistent(), 0u);
}

TEST_F(FenceMachineTest, AFunctionKnownToTakeLongIsWaitedForLonger) {
  Context context;
  world_.estimates().Learn(1, static_cast<uint64_t>(4 * kS));
  Launch(context, 0, 1, kNever);
  Look({&context});
  Pass(16 * kS, {&context});
  EXPECT_EQ(Persistent(), 0u);
  Pass(2 * kS, {&context});
  EXPECT_NE(Persistent(), 0u);
}

// A launch that comes while the last ones still run is told of by the word that they have drained.
// But not for ever: they may wait for it, as the kernels of a collective do. Seen in the
// simulation: a gang that was none yet, and never seen to wait.
TEST_F(FenceMachineTest, AWaitIsToldOfWithTheDrainingOrALittleLater) {
  Context context;
  world_.estimates().Learn(1, static_cast<uint64_t>(kMs));
  Launch(context, 0, 1, kNever);
  world_.limits.lease.store(1u << protocol::kLeaseSequenceShift);
  LaunchWait wait(0);
  const LaunchWait::Next next = wait.Step(world_);
  EXPECT_EQ(next.what, LaunchWait::Do::kAwaitLease);
  EXPECT_EQ(next.timeout_ns, 2 * kMs);
  EXPECT_EQ(world_.usage.waiting, 1u);
  EXPECT_TRUE(world_.sent.empty());
  world_.now_ns += next.timeout_ns;
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookAgainNs);
  EXPECT_EQ(world_.sent, std::vector{protocol::MessageType::kLeaseWanted});
}

TEST_F(FenceMachineTest, AWaitThatTheDrainingToldOfIsNotToldOfAgain) {
  Context context;
  world_.estimates().Learn(1, static_cast<uint64_t>(kMs));
  Launch(context, 0, 1, kNever);
  const auto word = [](uint32_t sequence) { return sequence << protocol::kLeaseSequenceShift; };
  world_.limits.lease.store(word(1));
  LaunchWait wait(0);
  world_.now_ns += wait.Step(world_).timeout_ns;
  world_.usage.drained_sequence = 1;
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookAgainNs);
  world_.now_ns += LaunchWait::kLookAgainNs;
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookAgainNs);
  EXPECT_TRUE(world_.sent.empty());
  // Another lease, which opened and closed while it slept: nobody has told of that.
  world_.limits.lease.store(word(3));
  world_.now_ns += wait.Step(world_).timeout_ns;
  wait.Step(world_);
  EXPECT_EQ(world_.sent, std::vector{protocol::MessageType::kLeaseWanted});
}

TEST_F(FenceMachineTest, AWaitAfterTheDrainingIsToldOfAtOnce) {
  Context context;
  world_.estimates().Learn(1, static_cast<uint64_t>(kMs));
  Launch(context, 0, 1, kNever);
  world_.limits.lease.store(1u << protocol::kLeaseSequenceShift);
  world_.usage.drained_sequence = 1;
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).timeout_ns, LaunchWait::kLookAgainNs);
  EXPECT_EQ(world_.sent, std::vector{protocol::MessageType::kLeaseWanted});
}

TEST_F(FenceMachineTest, ADrainThatNobodyAwaitsIsWrittenAndNotSent) {
  Context context;
  for (const uint32_t unawaited : {1u, 2u}) {
    world_.limits.lease.store(2u << protocol::kLeaseSequenceShift);
    world_.limits.drain_unawaited = unawaited;
    world_.compute.watch = LeaseWatch();
    world_.sent.clear();
    world_.usage.drained_sequence = 0;
    world_.now_ns += kMs;
    Look({&context});
    EXPECT_EQ(world_.usage.drained_sequence, 2u);
    EXPECT_EQ(world_.usage.expected_end_ns, world_.now_ns);
    EXPECT_EQ(world_.sent.size(), unawaited == 2 ? 0u : 1u) << "of another lease it is not said";
  }
}

// What was launched and left without a fence may be done when its thread comes to wait.
TEST_F(FenceMachineTest, ABatchThatIsFencedLateIsExpectedToEndByWhenItBegan) {
  Context context;
  StreamRecord& stream = context.streams[0];
  world_.estimates().Learn(1, 300'000);
  ASSERT_TRUE(RaiseLaunching(world_, &stream));
  const uint32_t estimate_ns =
      PrepareBatch(FenceMachine<FakeWorld>(world_), &stream, world_.estimates().Lookup(1));
  const int64_t began_ns = world_.now_ns;
  EXPECT_FALSE(AddLaunch(&stream, this, 1, estimate_ns));
  stream.launching.fetch_sub(1);
  world_.free_at_ns[&stream] = began_ns + 320'000;
  world_.now_ns += 250'000;
  world_.limits.lease.store(1u << protocol::kLeaseSequenceShift);
  FenceBeforeWait(world_, &stream);
  EXPECT_EQ(world_.usage.expected_end_ns, began_ns + estimate_ns);
  EXPECT_NEAR(static_cast<double>(estimate_ns), 300'000, 5'000);
}

TEST_F(FenceMachineTest, ALaunchPutsOffTheLook) {
  Context context;
  world_.limits.idle_report_us = 200;
  world_.estimates().Learn(1, static_cast<uint64_t>(kMs));
  const int64_t estimate_ns = world_.estimates().Lookup(1);
  world_.PlanLook(0, world_.now_ns + 100'000, world_.now_ns + 15 * kMs);
  Launch(context, 0, 1, kNever);
  EXPECT_EQ(world_.compute.look_ns, world_.now_ns + estimate_ns - estimate_ns / 16 + 100'000);
  EXPECT_EQ(world_.usage.backlog_ns, static_cast<uint64_t>(estimate_ns))
      << "the agent must know that there is something";
  const int64_t by_ns = world_.now_ns + kMs / 2;
  world_.PlanLook(0, world_.now_ns + 100'000, by_ns);
  Launch(context, 0, 1, kNever);
  EXPECT_EQ(world_.compute.look_ns, by_ns) << "no further than that";
  world_.PlanLook(0, world_.now_ns + 100'000, 0);
  Launch(context, 0, 1, kNever);
  EXPECT_EQ(world_.compute.look_ns, world_.now_ns + 100'000) << "it may not be put off";
}

// How long it takes is not known: 2 ms are assumed, and it may be much less.
TEST_F(FenceMachineTest, AnUnknownLaunchDoesNotPutOffTheLook) {
  Context context;
  world_.PlanLook(0, world_.now_ns + 100'000, world_.now_ns + 15 * kMs);
  Launch(context, 0, 1, kNever);
  EXPECT_EQ(world_.compute.look_ns, world_.now_ns + 100'000);
}

TEST_F(FenceMachineTest, WhenAllIsDoneEarlyItIsNotExpectedAnyMore) {
  Context context;
  world_.estimates().Learn(1, static_cast<uint64_t>(10 * kMs));
  Launch(context, 0, 1, world_.now_ns + kMs);
  world_.now_ns += 2 * kMs;
  Look({&context});
  EXPECT_EQ(world_.compute.backlog.end_ns(), world_.now_ns);
}

// Beside others, a program that launches no faster than the device runs has little outstanding.
TEST_F(FenceMachineTest, OfWhatIsLaunchedSlowlyInCompanyTheLastIsLeft) {
  Context context;
  world_.limits.together = 1;
  StreamRecord& stream = context.streams[0];
  world_.estimates().Learn(1, 100'000);
  FenceMachine<FakeWorld> fences(world_);
  const uint32_t estimate_ns = PrepareBatch(fences, &stream, world_.estimates().Lookup(1));
  world_.free_at_ns[&stream] = kNever;
  while (!AddLaunch(&stream, this, 1, estimate_ns)) world_.now_ns += 200'000;
  fences.EndBatch(&stream, false);
  EXPECT_EQ(world_.usage.expected_end_ns, world_.now_ns + estimate_ns);
}

TEST_F(FenceMachineTest, WhoWaitsAtTheBoundIsCounted) {
  Context context;
  world_.limits.backlog_alone_us.store(500);
  world_.estimates().Learn(1, static_cast<uint64_t>(kMs));
  Launch(context, 0, 1, world_.now_ns + kMs);
  LaunchWait wait(0);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitFence);
  EXPECT_EQ(world_.compute.at_bound, 1u);
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kAwaitFence);
  EXPECT_EQ(world_.compute.at_bound, 1u);
  world_.now_ns += kMs;
  Look({&context});
  EXPECT_EQ(wait.Step(world_).what, LaunchWait::Do::kPass);
  EXPECT_EQ(world_.compute.at_bound, 0u);
}

TEST_F(FenceMachineTest, APersistentKernelIsNotLookedAtAllTheTime) {
  LeaseWatch watch;
  LeaseWatch::Seen seen = {1 * kS, 0, true, true, 0, 1, 1, 200};
  EXPECT_EQ(watch.Step(seen).look_again_ns, LeaseWatch::kOftenNs);
  seen.persistent = true;
  EXPECT_EQ(watch.Step(seen).look_again_ns, LeaseWatch::kSometimesNs);
  seen.lease = protocol::kLeaseOpen | protocol::kLeaseContended;
  EXPECT_EQ(watch.Step(seen).look_again_ns, LeaseWatch::kSometimesNs);
}

}  // namespace
}  // namespace prorata::client
