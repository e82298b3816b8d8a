// The pure parts of gating launches: estimates, batches and their charge, backlog, lost heartbeats.

#include <gtest/gtest.h>

#include "client/compute/testing_world.h"

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/units.h"
#include "client/compute/backlog.h"
#include "client/compute/device_compute.h"
#include "client/compute/estimates.h"
#include "client/session/heartbeat_watch.h"

namespace prorata::client {
namespace {

Batch Known(uint64_t launches, uint64_t estimate_ns) {
  Batch batch;
  batch.key = 1;
  batch.launches = launches;
  batch.estimate_ns = estimate_ns;
  return batch;
}

TEST(Measure, ASingleLaunchFencedAtOnceIsItsElapsedTimeAndTeaches) {
  Batch batch = Known(1, 0);
  batch.unknown = batch.prompt = true;
  const Measured seen = MeasureBatch(batch, 700);
  EXPECT_EQ(seen.busy_ns, 700u);
  EXPECT_EQ(seen.most_ns, 700u);
  EXPECT_EQ(seen.least_ns, 700u);
}

// The device idles between a start event and a launch that comes later.
TEST(Measure, TheTimeThatALaunchTookToComeIsNoWork) {
  Batch batch = Known(1, 0);
  batch.unknown = batch.prompt = true;
  batch.gap_ns = 2 * kUs;
  const Measured first = MeasureBatch(batch, 7 * kUs);
  EXPECT_EQ(first.busy_ns, 5u * kUs);
  EXPECT_EQ(first.most_ns, 5u * kUs);
  EXPECT_EQ(first.least_ns, 5u * kUs);
  batch.unknown = false;
  batch.estimate_ns = 5 * kUs;
  batch.gap_ns = 90 * kUs;  // the thread was stopped on the way, be it before or after the launch
  const Measured late = MeasureBatch(batch, 95 * kUs);
  EXPECT_EQ(late.busy_ns, 5u * kUs) << "as estimated: it can be";
  EXPECT_EQ(late.most_ns, 95u * kUs);
  EXPECT_EQ(late.least_ns, 5u * kUs);
  EXPECT_EQ(MeasureBatch(batch, 4 * kUs).busy_ns, 4u * kUs) << "no more than all of it";
  const Measured longer = MeasureBatch(batch, 200 * kUs);
  EXPECT_EQ(longer.busy_ns, 110u * kUs) << "its gap is the shorter part: that was before it";
  EXPECT_EQ(longer.most_ns, 110u * kUs);
  EXPECT_EQ(longer.least_ns, 110u * kUs);
}

TEST(Measure, GapsBetweenSlowLaunchesAreNoWork) {
  const Measured seen = MeasureBatch(Known(10, 500 * kUs), 600 * kUs);
  EXPECT_EQ(seen.busy_ns, 500u * kUs);
  EXPECT_EQ(seen.most_ns, 0u) << "nothing is learned of how long they take";
  EXPECT_FALSE(seen.doubtful);
  EXPECT_TRUE(MeasureBatch(Known(10, 500 * kUs), 5 * kMs).doubtful);
}

TEST(Measure, AQueueAheadOfTheDeviceIsMeasuredInFull) {
  Batch batch = Known(10, 500 * kUs);
  batch.pressed = true;
  const Measured seen = MeasureBatch(batch, 2 * kMs);
  EXPECT_EQ(seen.busy_ns, 2u * kMs);
  EXPECT_EQ(seen.least_ns, 200u * kUs);
}

TEST(Measure, BesideOtherStreamsItIsKnownWithinBounds) {
  Batch batch = Known(10, 500 * kUs);
  batch.pressed = true;
  batch.streams = 4;
  const Measured seen = MeasureBatch(batch, 2 * kMs);
  EXPECT_EQ(seen.busy_ns, 500u * kUs) << "as estimated: the others are in it";
  EXPECT_EQ(seen.most_ns, 200u * kUs);
  EXPECT_EQ(seen.least_ns, 50u * kUs);
}

TEST(Measure, BesideOtherSharesNothingIsLearnedButOfTheUnknown) {
  Batch batch = Known(10, 500 * kUs);
  batch.pressed = true;
  EXPECT_EQ(MeasureBatch(batch, 2 * kMs, {.in_gaps = true}).busy_ns, 500u * kUs);
  EXPECT_EQ(MeasureBatch(batch, 2 * kMs, {.in_gaps = true}).most_ns, 0u);
  batch = Known(1, 0);
  batch.unknown = batch.prompt = true;
  EXPECT_EQ(MeasureBatch(batch, 2 * kMs, {.in_gaps = true}).most_ns, 2u * kMs);
}

// Of two contexts each has every second slice of the hardware: 36 us that wait for one of those,
// and a kernel of 20 ms.
TEST(Measure, InSlicesOfTheHardwareItIsKnownWithinBounds) {
  const Beside beside{.in_slices = 2};
  Batch batch = Known(1, 36 * kUs);
  batch.prompt = true;
  const Measured small = MeasureBatch(batch, 3 * kMs, beside);
  EXPECT_EQ(small.busy_ns, 36u * kUs) << "as estimated: it can be";
  EXPECT_LE(small.least_ns, 36u * kUs);
  EXPECT_EQ(small.most_ns, 3u * kMs);
  EXPECT_FALSE(small.doubtful);
  const Measured large = MeasureBatch(batch, 40 * kMs, beside);
  EXPECT_EQ(large.busy_ns, 18u * kMs) << "at least";
  EXPECT_EQ(large.least_ns, 18u * kMs);
  EXPECT_EQ(large.most_ns, 40u * kMs);
  EXPECT_EQ(MeasureBatch(batch, 20 * kUs, beside).most_ns, 20u * kUs) << "no more than all of it";
  batch = Known(2, 600 * kUs);
  batch.launching_ns = 2 * kMs;
  const Measured slow = MeasureBatch(batch, 46 * kMs, beside);
  EXPECT_EQ(slow.busy_ns, 20u * kMs) << "at least, though the device may have idled before";
  EXPECT_EQ(slow.least_ns, 10u * kMs);
  batch.streams = 2;
  EXPECT_EQ(MeasureBatch(batch, 46 * kMs, beside).busy_ns, 10u * kMs);
}

TEST(Measure, ABatchShorterThanEstimatedShowsThatTheEstimateIsTooLong) {
  const Measured seen = MeasureBatch(Known(10, 500 * kUs), 100 * kUs);
  EXPECT_EQ(seen.most_ns, 10u * kUs);
}

TEST(Measure, MixedBatchesThatDoNotFitAreDoubted) {
  Batch batch = Known(10, 500 * kUs);
  batch.key = 0;
  batch.pressed = true;
  EXPECT_FALSE(MeasureBatch(batch, 600 * kUs).doubtful);
  EXPECT_TRUE(MeasureBatch(batch, 700 * kUs).doubtful);
  EXPECT_TRUE(MeasureBatch(batch, 200 * kUs).doubtful);
  EXPECT_TRUE(MeasureBatch(batch, 370 * kUs).too_long);
  EXPECT_FALSE(MeasureBatch(batch, 380 * kUs).too_long);
}

TEST(Occupancy, ItIsTheUnionOfAllReasonsToBeBusy) {
  shm::DeviceUsage usage = {};
  Occupancy occupancy;
  occupancy.Begin(usage, 1'000);
  occupancy.Begin(usage, 2'000);
  EXPECT_EQ(occupancy.Publish(usage, 2'500), 1'500u);
  occupancy.End(usage, 3'000);
  occupancy.End(usage, 4'000);
  EXPECT_EQ(occupancy.ended_ns(), 4'000);
  EXPECT_EQ(occupancy.Publish(usage, 9'000), 3'000u);
  EXPECT_EQ(usage.occupied_ns, 3'000u);
  occupancy.Begin(usage, 3'500);  // began before the end of the last was known
  EXPECT_EQ(occupancy.Publish(usage, 5'000), 4'000u) << "no time counts twice";
  occupancy.Measure(usage, 1'000'000, 5'000);
  EXPECT_EQ(usage.device_time_ns, 4'000u) << "no more than it was busy";
}

// At any moment, whenever it was last published.
TEST(Occupancy, AReaderSeesWhatIsNotPublishedYet) {
  shm::DeviceUsage usage = {};
  Occupancy occupancy;
  const auto seen = [&](int64_t now_ns) { return shm::OccupiedNs(usage, now_ns, 10'000); };
  EXPECT_EQ(seen(900), 0u);
  occupancy.Begin(usage, 1'000);
  EXPECT_EQ(seen(1'700), 700u);
  EXPECT_EQ(occupancy.Publish(usage, 2'500), 1'500u);
  EXPECT_EQ(seen(2'600), 1'600u);
  EXPECT_EQ(occupancy.Publish(usage, 2'400), 1'500u) << "another thread's clock";
  EXPECT_EQ(seen(2'600), 1'600u);
  EXPECT_EQ(seen(2'500 + 10'001), 1'500u) << "too old to be this clock's";
  occupancy.Begin(usage, 2'700);
  occupancy.End(usage, 3'000);
  EXPECT_EQ(seen(3'100), 2'100u);
  occupancy.End(usage, 4'000);
  EXPECT_EQ(seen(9'000), 3'000u);
  occupancy.Begin(usage, 5'000);
  EXPECT_EQ(seen(5'500), 3'500u);
  EXPECT_EQ(occupancy.Publish(usage, 6'000), 4'000u);
  occupancy.End(usage, 5'900);
  EXPECT_EQ(seen(9'000), 4'000u) << "it never goes back";
  occupancy.Begin(usage, 10'000);
  EXPECT_EQ(seen(10'050), 4'000u);
  EXPECT_EQ(seen(10'200), 4'100u) << "and no time counts twice";
}

// Nobody looks from 2 ms after the helper was to, until now.
class Away : public testing::Test {
 protected:
  static constexpr int64_t kFromNs = 5 * kMs + shm::kLateLookNs, kBackNs = 80 * kMs;
  Away() {
    occupancy_.Begin(usage_, 1 * kMs);
    occupancy_.Publish(usage_, 3 * kMs);
    usage_.looks_by_ns = 5 * kMs;
  }
  void ComeBack() { EXPECT_EQ(occupancy_.LateFrom(usage_, kBackNs), kFromNs); }
  uint64_t OccupiedAt(int64_t now_ns) { return occupancy_.Publish(usage_, now_ns); }
  uint64_t SeenAt(int64_t now_ns) const { return shm::OccupiedNs(usage_, now_ns, 200 * kMs); }

  shm::DeviceUsage usage_ = {};
  Occupancy occupancy_;
};

TEST_F(Away, OnlyWhatItsWorkTookCounts) {
  EXPECT_EQ(SeenAt(6 * kMs), 5u * kMs);
  EXPECT_EQ(SeenAt(kBackNs), kFromNs - 1 * kMs) << "for others, too";
  ComeBack();
  EXPECT_EQ(occupancy_.Ran(2 * kMs, 12 * kMs, kBackNs), 14 * kMs) << "it ended then";
  EXPECT_EQ(occupancy_.Ran(14 * kMs, 2 * kMs, kBackNs), 16 * kMs);
  occupancy_.End(usage_, kBackNs);
  EXPECT_EQ(OccupiedAt(kBackNs), 15u * kMs);
  EXPECT_EQ(occupancy_.ended_ns(), 16 * kMs);
  occupancy_.Begin(usage_, 90 * kMs);
  usage_.looks_by_ns = 100 * kMs;
  EXPECT_EQ(OccupiedAt(95 * kMs), 20u * kMs) << "and all of what comes then";
}

TEST_F(Away, WhatIsNotDoneWhenItIsBackRanAllTheTime) {
  occupancy_.Settle(usage_, 2 * kMs, 0, kBackNs);
  usage_.looks_by_ns = kBackNs + 10 * kMs;
  constexpr int64_t kSettledNs = kBackNs + Occupancy::kBackNs;
  occupancy_.Settle(usage_, 2 * kMs, 0, kSettledNs - 1);
  EXPECT_EQ(OccupiedAt(kBackNs), 2u * kMs) << "it may be done, and is not seen to be yet";
  occupancy_.Settle(usage_, 2 * kMs, 0, kSettledNs);
  EXPECT_EQ(OccupiedAt(kSettledNs), static_cast<uint64_t>(kSettledNs - 1 * kMs));
}

TEST_F(Away, WhatIsNotSettledYetIsNotSeenByOthers) {
  ComeBack();
  EXPECT_EQ(OccupiedAt(kBackNs), 2u * kMs);
  usage_.looks_by_ns = kBackNs + 5 * kMs;
  EXPECT_EQ(SeenAt(kBackNs + 1 * kMs), 3u * kMs);
  EXPECT_EQ(OccupiedAt(kBackNs + 1 * kMs), 3u * kMs);
}

TEST_F(Away, WhatWasSubmittedMeanwhileRanSinceThen) {
  ComeBack();
  occupancy_.Ran(2 * kMs, 12 * kMs, kBackNs);
  usage_.looks_by_ns = kBackNs + 10 * kMs;
  occupancy_.Settle(usage_, 60 * kMs, 3 * kMs, kBackNs);
  EXPECT_EQ(OccupiedAt(kBackNs), 13u * kMs) << "it may be done, too";
  constexpr int64_t kSettledNs = kBackNs + Occupancy::kBackNs;
  occupancy_.Settle(usage_, 60 * kMs, 3 * kMs, kSettledNs);
  EXPECT_EQ(OccupiedAt(kSettledNs), (13u + 20u + 3u) * kMs + Occupancy::kBackNs);
}

TEST_F(Away, WhatWasSubmittedSinceIsNoReasonToWait) {
  ComeBack();
  usage_.looks_by_ns = kBackNs + 10 * kMs;
  occupancy_.Settle(usage_, kBackNs + 1, 3 * kMs, kBackNs + 2);
  EXPECT_EQ(OccupiedAt(kBackNs), (2u + 3u) * kMs);
}

TEST_F(Away, NoMoreThanAllOfIt) {
  ComeBack();
  EXPECT_EQ(occupancy_.Ran(4 * kMs, 100 * kMs, kBackNs), kBackNs);
  occupancy_.Ran(4 * kMs, 100 * kMs, kBackNs);
  occupancy_.End(usage_, kBackNs);
  EXPECT_EQ(OccupiedAt(kBackNs), 79u * kMs);
}

// Another thread of it goes on: what that has seen done counts since it last looked.
TEST_F(Away, WhoLooksIsNotAway) {
  OccupiedAt(50 * kMs);
  occupancy_.Settle(usage_, INT64_MAX, 0, 50 * kMs);
  const uint64_t before_ns = OccupiedAt(50 * kMs);
  EXPECT_EQ(occupancy_.LateFrom(usage_, 51 * kMs), 50 * kMs);
  EXPECT_EQ(occupancy_.Ran(40 * kMs, 60 * kMs, 51 * kMs), 51 * kMs);
  EXPECT_EQ(OccupiedAt(51 * kMs) - before_ns, 1u * kMs);
}

TEST(Backlog, WhatHasRunOfTheOldestIsNotStillToRun) {
  Backlog backlog;
  backlog.HeadIs(500 * kUs, 10 * kMs);
  backlog.Add(500 * kUs, 10 * kMs);
  backlog.Add(300 * kUs, 10 * kMs);
  EXPECT_EQ(backlog.StillNs(10 * kMs), 800u * kUs);
  EXPECT_EQ(backlog.StillNs(10 * kMs + 200 * kUs), 600u * kUs);
  EXPECT_EQ(backlog.StillNs(20 * kMs), 300u * kUs) << "no more than the oldest";
}

// The next item has run since the oldest was done, not only since somebody looked.
TEST(Backlog, ALateLookDoesNotDelayTheExpectedEnd) {
  Backlog backlog;
  backlog.HeadIs(500 * kUs, 10 * kMs);
  for (int i = 0; i < 4; ++i) backlog.Add(500 * kUs, 10 * kMs);
  backlog.Remove(500 * kUs);
  backlog.Remove(500 * kUs);
  backlog.HeadIs(500 * kUs, 10 * kMs + 1'400 * kUs);
  EXPECT_EQ(backlog.StillNs(10 * kMs + 1'400 * kUs), 600u * kUs);
  EXPECT_EQ(backlog.StillNs(10 * kMs + 1'700 * kUs), 500u * kUs) << "the last has not begun";
  // The device is late: at the most all of what is left is still to run.
  backlog.Remove(500 * kUs);
  backlog.HeadIs(500 * kUs, 10 * kMs + 2'500 * kUs);
  EXPECT_EQ(backlog.StillNs(10 * kMs + 2'500 * kUs), 0u);
  // It is early.
  Backlog early;
  early.Add(900 * kUs, 0);
  early.Add(100 * kUs, 0);
  early.Remove(900 * kUs);
  early.HeadIs(100 * kUs, 100 * kUs);
  EXPECT_EQ(early.StillNs(100 * kUs), 100u * kUs);
  EXPECT_EQ(early.StillNs(150 * kUs), 50u * kUs);
}

TEST(Backlog, OneItemMayBeLongerThanTheBound) {
  Backlog backlog;
  EXPECT_FALSE(backlog.Full(0)) << "nothing is queued: the next one passes whatever the bound";
  backlog.Add(50 * kMs, 0);
  EXPECT_TRUE(backlog.Full(20 * kMs));
  backlog.Remove(50 * kMs);
  backlog.Add(10 * kMs, 0);
  EXPECT_FALSE(backlog.Full(20 * kMs));
}

TEST(Backlog, TheWordHoldsCountsAndTime) {
  uint64_t word = 0;
  for (int i = 0; i < 1000; ++i) word += kOneLaunch + 3 * kMs;
  EXPECT_EQ(LaunchesIn(word), 1000u);
  EXPECT_EQ(NsIn(word), 3000u * kMs);
}

TEST(HeartbeatWatch, CountsOnlyWhatIsCertain) {
  HeartbeatWatch watch;
  EXPECT_EQ(watch.Observe(7, 100 * kMs), 0) << "the first poll knows nothing";
  EXPECT_EQ(watch.Observe(7, 150 * kMs), 50 * kMs);
  EXPECT_EQ(watch.Observe(8, 200 * kMs), 0);
  EXPECT_EQ(watch.Observe(8, 900 * kMs), 700 * kMs);
}

TEST(FallbackBucket, HoldsTheRate) {
  FallbackBucket bucket;
  int64_t busy_ns = 0;
  constexpr uint32_t kThirty = 300'000;
  int64_t now_ns = 1'000 * kMs;
  const int64_t start_ns = now_ns;
  while (now_ns - start_ns < 10'000 * kMs) {
    if (bucket.MayRun(now_ns, kThirty)) {
      bucket.Spend(5 * kMs);
      busy_ns += 5 * kMs;
      now_ns += 5 * kMs;
    } else {
      now_ns += kMs;
    }
  }
  EXPECT_NEAR(static_cast<double>(busy_ns) / static_cast<double>(now_ns - start_ns), 0.3, 0.01);
}

TEST(FallbackBucket, ALongPauseEarnsOneBurst) {
  FallbackBucket bucket;
  EXPECT_TRUE(bucket.MayRun(1'000 * kMs, 500'000));
  bucket.Spend(30 * kMs);
  EXPECT_FALSE(bucket.MayRun(1'001 * kMs, 500'000));
  EXPECT_TRUE(bucket.MayRun(100'000 * kMs, 500'000));
  bucket.Spend(21 * kMs);
  EXPECT_FALSE(bucket.MayRun(100'000 * kMs + 1, 500'000));
}

TEST(FallbackBucket, WhatWasUsedBeforeTheOutageWasNoticedCounts) {
  FallbackBucket bucket;
  bucket.Begin(1'000 * kMs, 80 * kMs, 50 * kMs, 250'000);  // 30 ms above its part
  int64_t used_ns = 0;
  for (int64_t now_ns = 1'000 * kMs; now_ns < 2'000 * kMs; now_ns += kMs) {
    if (now_ns == 1'010 * kMs) {
      EXPECT_GT(used_ns, 0) << "but it is not stopped for it";
    }
    if (!bucket.MayRun(now_ns, 250'000)) continue;
    bucket.Spend(kMs);
    used_ns += kMs;
  }
  EXPECT_NEAR(static_cast<double>(used_ns), 220.0 * kMs, 2.0 * kMs);
  bucket.Begin(2'000 * kMs, 80 * kMs, 0, 250'000);  // it was closed, and has its part
  EXPECT_TRUE(bucket.MayRun(2'000 * kMs, 250'000));
  bucket.Spend(21 * kMs);
  EXPECT_FALSE(bucket.MayRun(2'000 * kMs, 250'000)) << "and no more than a burst";
}

TEST(FallbackBucket, AMemberHoldsItsPartOfTheLimit) {
  shm::DeviceLimits limits = {};
  limits.compute_limit_ppm = 600'000;
  EXPECT_EQ(PartPpm(limits), 600'000u) << "an agent that does not count";
  limits.active_members = 3;
  EXPECT_EQ(PartPpm(limits), 200'000u);
  limits.compute_limit_ppm = 1'000'000;
  EXPECT_EQ(PartPpm(limits), 1'000'000u) << "no limit, no parts";
}

// The first thread of a stream is stopped within its addition, and a second one launches, and
// fences, meanwhile.
TEST_F(WorkTrackerTest, AnAdditionThatIsLostIsNoWorkOfMinutes) {
  Context context(world_, 1);
  StreamRecord& stream = context.streams[0];
  Teach(1, 50 * kUs);
  const uint64_t before = stream.submitted.load();
  for (int i = 1; i <= 3; ++i) Launch(context, 0, 1, world_.now_ns + i * 50 * kUs);
  tracker_.End(&stream, false);
  stream.submitted.store(before + kOneLaunch + 50 * kUs);
  EXPECT_TRUE(HasOpen(stream));
  LaunchFenced(context, 0, 1, world_.now_ns + 200 * kUs);
  EXPECT_LT(world_.compute.backlog.ns(), static_cast<uint64_t>(kMs));
  world_.now_ns += kMs;
  Poll();
  EXPECT_FALSE(Busy());
  EXPECT_LE(world_.compute.launches.load(), 5u);
}

}  // namespace
}  // namespace prorata::client
