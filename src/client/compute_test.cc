// The pure parts of gating launches: estimates, batches and their charge, backlog, silence.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "client/backlog.h"
#include "client/contexts_once.h"
#include "client/estimates.h"
#include "client/member_compute.h"
#include "client/silence.h"

namespace prorata::client {
namespace {

constexpr int64_t kUs = 1'000, kMs = 1'000'000;

TEST(Estimates, UnknownUntilLearnedThenFollowsSlowly) {
  auto estimates = std::make_unique<Estimates>();
  const uint64_t key = LaunchKey(&key, 1, 2, 3);
  EXPECT_EQ(estimates->Lookup(key), 0u);
  estimates->Learn(key, 8000, 8000);
  EXPECT_EQ(estimates->Lookup(key), 8000u);
  estimates->Learn(key, 16000, 16000);
  EXPECT_EQ(estimates->Lookup(key), 10000u);
}

// Beside members of its own share a launch is measured too long, as a rule, and never too short.
TEST(Estimates, WhatOthersRanBesideMakesLongerBySlowSteps) {
  auto estimates = std::make_unique<Estimates>();
  estimates->Learn(7, 9000, 9000, true);
  EXPECT_EQ(estimates->Lookup(7), 9000u) << "there is nothing better to go by";
  estimates->Learn(7, 9000 + 32'000, 9000 + 32'000, true);
  EXPECT_EQ(estimates->Lookup(7), 10'000u);
  estimates->Learn(7, 6000, 6000, true);
  EXPECT_EQ(estimates->Lookup(7), 9000u) << "shorter is nearer to the truth";
}

TEST(Estimates, WhatIsKnownWithinBoundsMovesNoneThatIsBetweenThem) {
  auto estimates = std::make_unique<Estimates>();
  estimates->Learn(7, 2000, 8000);
  EXPECT_EQ(estimates->Lookup(7), 8000u) << "too long is harmless";
  estimates->Learn(7, 4000, 4000);
  EXPECT_EQ(estimates->Lookup(7), 7000u);
  estimates->Learn(7, 2000, 8000);
  EXPECT_EQ(estimates->Lookup(7), 7000u);
  estimates->Learn(7, 8000, 16'000);
  EXPECT_EQ(estimates->Lookup(7), 7250u) << "towards the nearer of them";
  estimates->Learn(7, 1000, 3250);
  EXPECT_EQ(estimates->Lookup(7), 6250u);
}

TEST(Estimates, NothingTakesNothingAndNothingOverflows) {
  auto estimates = std::make_unique<Estimates>();
  estimates->Learn(3, 1, 1);
  EXPECT_EQ(estimates->Lookup(3), Estimates::kLeastNs);
  estimates->Learn(5, ~uint64_t{0}, ~uint64_t{0});
  EXPECT_EQ(estimates->Lookup(5), 4'000'000'000u);
}

TEST(Estimates, GridsAndFunctionsAreTold) {
  int f, g;
  EXPECT_NE(LaunchKey(&f, 1, 1, 1), LaunchKey(&g, 1, 1, 1));
  EXPECT_NE(LaunchKey(&f, 1, 2, 1), LaunchKey(&f, 2, 1, 1));
  EXPECT_NE(LaunchKey(&f, 1, 1, 2), LaunchKey(&f, 1, 2, 1));
  EXPECT_NE(LaunchKey(nullptr, 0, 0, 0), 0u);
}

TEST(Estimates, MoreFunctionsThanRoomAndManyThreadsDoNoHarm) {
  auto estimates = std::make_unique<Estimates>();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 1; i < 20'000; ++i) {
        const uint64_t key = LaunchKey(&threads, i, t % 2, 0);
        estimates->Learn(key, 5000, 5000);
        const uint32_t ns = estimates->Lookup(key);
        EXPECT_TRUE(ns == 0 || ns == 5000) << ns;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Batch Known(uint64_t launches, uint64_t estimate_ns) {
  Batch batch;
  batch.key = 1;
  batch.launches = launches;
  batch.estimate_ns = estimate_ns;
  return batch;
}

TEST(Charge, ASingleLaunchIsItsElapsedTimeAndTeaches) {
  Batch batch = Known(1, 0);
  batch.unknown = true;
  batch.host_ns = 5 * kMs;
  const BatchCharge charge = ChargeOf(batch, 3 * kMs, INT64_MAX);
  EXPECT_EQ(charge.busy_ns, 3u * kMs);
  EXPECT_EQ(charge.learned_ns, 3u * kMs);
}

TEST(Charge, GapsBetweenSlowLaunchesAreNotCharged) {
  Batch batch = Known(100, 500 * kUs);
  batch.host_ns = 1000 * kMs;  // one launch in 10 ms
  const BatchCharge charge = ChargeOf(batch, 1000 * kMs, INT64_MAX);
  EXPECT_EQ(charge.busy_ns, 500u * kUs);
  EXPECT_EQ(charge.learned_ns, 0u);
}

TEST(Charge, AQueueAheadOfTheDeviceIsMeasuredInFull) {
  Batch batch = Known(100, 500 * kUs);
  batch.host_ns = 100 * kUs;
  EXPECT_EQ(ChargeOf(batch, 900 * kUs, INT64_MAX).busy_ns, 900u * kUs);
  EXPECT_EQ(ChargeOf(batch, 900 * kUs, INT64_MAX).learned_ns, 9u * kUs);
  batch.host_ns = 900 * kUs;  // the host waited for the device, which shows by the fence before it
  batch.pressed = true;
  EXPECT_EQ(ChargeOf(batch, 900 * kUs, INT64_MAX).busy_ns, 900u * kUs);
}

TEST(Charge, OverlapsOfStreamsAreChargedOnce) {
  Batch batch = Known(1, 0);
  EXPECT_EQ(ChargeOf(batch, 3 * kMs, 1 * kMs).busy_ns, 1u * kMs);
  EXPECT_EQ(ChargeOf(batch, 3 * kMs, -2 * kMs).busy_ns, 0u);
  EXPECT_EQ(ChargeOf(batch, 3 * kMs, 1 * kMs).learned_ns, 3u * kMs)
      << "its own length all the same";
}

// Seen in the one-process simulation: kernels of 200 us in four streams were expected to take 800,
// and a device stood still for 1.8 ms of each turn of 16.
TEST(Streams, ABatchBesideOthersTakesItsPartOfItsTime) {
  Batch batch = Known(2, 400 * kUs);
  batch.pressed = true;
  batch.beside = batch.open = 4;
  Uncharged none;
  const BatchCharge charge = ChargeOf(batch, 1600 * kUs, 400 * kUs, 4, &none);
  EXPECT_EQ(charge.busy_ns, 400u * kUs);
  EXPECT_EQ(charge.learned_ns, 200u * kUs);
  EXPECT_EQ(charge.least_ns, 200u * kUs);
  EXPECT_FALSE(charge.doubtful);
}

TEST(Streams, WhereOthersMayHaveBeenDoneItIsKnownWithinBounds) {
  Batch probe = Known(1, 0);
  probe.unknown = probe.pressed = true;
  probe.open = 3;
  Uncharged none;
  BatchCharge charge = ChargeOf(probe, 600 * kUs, 600 * kUs, 2, &none);
  EXPECT_EQ(charge.learned_ns, 600u * kUs);
  EXPECT_EQ(charge.least_ns, 200u * kUs) << "three streams had work, or may have had";
  Batch began_alone = Known(2, 400 * kUs);
  began_alone.beside = 1;
  charge = ChargeOf(began_alone, 1600 * kUs, 400 * kUs, 4, &none);
  EXPECT_EQ(charge.learned_ns, 800u * kUs) << "the others came later, nobody knows when";
  EXPECT_EQ(charge.least_ns, 200u * kUs);
}

TEST(Streams, WhatAnEstimateLeavesOverIsForTheOthers) {
  Batch slow = Known(2, 400 * kUs);  // its host is as slow as the device
  slow.host_ns = 2 * kMs;
  Uncharged uncharged;
  EXPECT_EQ(ChargeOf(slow, 2 * kMs, 2 * kMs, 4, &uncharged).busy_ns, 400u * kUs);
  EXPECT_EQ(uncharged.ns, 1'600u * kUs);
  EXPECT_EQ(ChargeOf(slow, 2 * kMs, 10 * kUs, 4, &uncharged).busy_ns, 400u * kUs)
      << "10 us of its own, and 390 that were left over";
  EXPECT_EQ(uncharged.ns, 1'210u * kUs);
  Batch full = Known(2, 400 * kUs);
  full.pressed = true;
  EXPECT_EQ(ChargeOf(full, 1 * kMs, 200 * kUs, 4, &uncharged).busy_ns, 600u * kUs)
      << "all of its time was busy: 400 us of it were the last one's";
  EXPECT_EQ(uncharged.ns, 0u);
}

TEST(Streams, NobodyClaimsTheHandover) {
  Batch first = Known(5, 500 * kUs);
  first.first = true;
  Uncharged uncharged;
  EXPECT_EQ(ChargeOf(first, 750 * kUs, 750 * kUs, 2, &uncharged).busy_ns, 500u * kUs);
  EXPECT_EQ(uncharged.ns, 0u);
}

TEST(Streams, TogetherTheyAreChargedNoMoreThanTheTimeThatPassed) {
  std::minstd_rand random(7);
  const auto upto = [&](int64_t most) {
    return std::uniform_int_distribution<int64_t>(1, most)(random);
  };
  for (int run = 0; run < 1000; ++run) {
    Uncharged uncharged;
    const bool all_busy = run % 2 == 0;
    int64_t frontier_ns = 0, end_ns = 0;
    uint64_t charged_ns = 0;
    for (int i = 0; i < 50; ++i) {
      end_ns += upto(300) * kUs;
      // In order of their ends. Where all is busy, each begins before the last one's end.
      const int64_t most_ns = all_busy ? end_ns : std::min(end_ns, 3 * kMs);
      const int64_t least_ns = all_busy ? end_ns - frontier_ns : 1;
      const int64_t elapsed_ns = std::max(least_ns, upto(most_ns));
      Batch batch = Known(3, static_cast<uint64_t>(upto(1000) * kUs));
      batch.pressed = all_busy || upto(2) == 1;
      batch.host_ns = elapsed_ns;
      batch.beside = static_cast<uint32_t>(upto(4));
      const auto streams = static_cast<uint32_t>(upto(4));
      charged_ns += ChargeOf(batch, static_cast<uint64_t>(elapsed_ns), end_ns - frontier_ns,
                             streams, &uncharged)
                        .busy_ns;
      frontier_ns = end_ns;
      ASSERT_LE(charged_ns, static_cast<uint64_t>(end_ns)) << "run " << run;
    }
    if (all_busy) {
      ASSERT_EQ(charged_ns, static_cast<uint64_t>(end_ns)) << "run " << run;
    }
  }
}

TEST(ContextsOnce, TogetherTheyUsedNoMoreThanTheTimeThatPassed) {
  ContextsOnce contexts;
  int64_t now_ns = 100 * kMs;
  const auto now = [&] { return now_ns; };
  contexts.Begin(now_ns);
  now_ns += 10 * kMs;
  EXPECT_EQ(contexts.Take(11 * kMs, now), 11u * kMs) << "one alone is measured, not bounded";
  contexts.End();
  now_ns = 200 * kMs;
  contexts.Begin(now_ns);
  contexts.Begin(now_ns);
  now_ns += 20 * kMs;
  EXPECT_EQ(contexts.Take(20 * kMs, now), 20u * kMs);
  EXPECT_EQ(contexts.Take(20 * kMs, now), 0u);
  now_ns += 5 * kMs;
  EXPECT_EQ(contexts.Take(25 * kMs, now), 5u * kMs);
  contexts.End();
  contexts.End();
  EXPECT_EQ(contexts.at_work(), 0u);
}

TEST(Charge, InACrowdWhatIsKnownCountsAndNothingIsLearned) {
  Batch batch = Known(10, 500 * kUs);
  batch.pressed = true;
  const BatchCharge charge = ChargeOf(batch, 1500 * kUs, INT64_MAX);
  EXPECT_EQ(charge.learned_ns, 150u * kUs);
  EXPECT_EQ(ChargeInCrowd(batch, charge).busy_ns, 500u * kUs);
  EXPECT_EQ(ChargeInCrowd(batch, charge).learned_ns, 0u);
  EXPECT_EQ(ChargeInCrowd(batch, ChargeOf(batch, 400 * kUs, INT64_MAX)).busy_ns, 400u * kUs);
  batch.unknown = true;
  EXPECT_EQ(ChargeInCrowd(batch, charge).busy_ns, 1500u * kUs);
}

TEST(Charge, MixedBatchesThatDoNotFitAreDoubted) {
  Batch batch = Known(10, 500 * kUs);
  batch.key = 0;
  EXPECT_FALSE(ChargeOf(batch, 510 * kUs, INT64_MAX).doubtful);
  EXPECT_TRUE(ChargeOf(batch, 900 * kUs, INT64_MAX).doubtful);
  EXPECT_TRUE(ChargeOf(batch, 100 * kUs, INT64_MAX).doubtful);
}

// Seen in the one-process simulation: a share with a limit of 0.3 used all of the device, charged
// as if its kernels still took the 20 us that were learned.
TEST(Charge, AHostThatSynchronisesDoesNotHideThatKernelsGrew) {
  Batch batch = Known(25, 500 * kUs);
  batch.host_ns = 500 * kMs;  // each launch was waited for, and took 20 ms
  EXPECT_TRUE(ChargeOf(batch, 500 * kMs, INT64_MAX).doubtful) << "or gaps: to be measured";
  batch.host_ns = 900 * kUs;
  EXPECT_FALSE(ChargeOf(batch, 900 * kUs, INT64_MAX).doubtful);
}

// Seen in the one-process simulation: a program that slept after a launch which no fence was behind
// was charged 312 ms for 200 us, and its function was learned to take as long.
TEST(Charge, ALaunchThatIsFencedLateIsNotChargedWithTheSleepBehindIt) {
  Batch batch = Known(1, 200 * kUs);
  batch.host_ns = 312 * kMs;
  const BatchCharge late = ChargeOf(batch, 312 * kMs, INT64_MAX);
  EXPECT_EQ(late.busy_ns, 200u * kUs);
  EXPECT_EQ(late.learned_ns, 0u);
  EXPECT_TRUE(late.doubtful) << "or it has grown: to be measured";
  batch.host_ns = 5 * kUs;
  EXPECT_EQ(ChargeOf(batch, 20 * kMs, INT64_MAX).busy_ns, 20u * kMs) << "fenced at once: it grew";
}

// Seen: two programs with bursts and gaps of 50 us were charged 220 % of what they used, by an
// estimate of 457 us for a kernel of 50 that nothing measured again.
TEST(Charge, ABatchShorterThanEstimatedShowsThatTheEstimateIsTooLong) {
  Batch batch = Known(2, 900 * kUs);
  batch.host_ns = 150 * kUs;
  const BatchCharge charge = ChargeOf(batch, 200 * kUs, INT64_MAX);
  EXPECT_TRUE(charge.doubtful);
  EXPECT_EQ(charge.busy_ns, 200u * kUs);
}

TEST(Charge, TheFirstBatchOfATurnDoesNotPayForTheHandover) {
  Batch batch = Known(5, 500 * kUs);
  batch.first = true;
  EXPECT_EQ(ChargeOf(batch, 650 * kUs, INT64_MAX).busy_ns, 500u * kUs);
  EXPECT_EQ(ChargeOf(batch, 650 * kUs, INT64_MAX).learned_ns, 0u);
  EXPECT_EQ(ChargeOf(batch, 400 * kUs, INT64_MAX).busy_ns, 400u * kUs);
  EXPECT_FALSE(ChargeOf(batch, 950 * kUs, INT64_MAX).doubtful);
  // All of it ran beside another's work; or it has grown, which the next launch shows.
  EXPECT_EQ(ChargeOf(batch, 1'200 * kUs, INT64_MAX).busy_ns, 500u * kUs);
  EXPECT_EQ(ChargeOf(batch, 1'200 * kUs, INT64_MAX).learned_ns, 0u);
  EXPECT_TRUE(ChargeOf(batch, 1'200 * kUs, INT64_MAX).doubtful);
  EXPECT_EQ(ChargeOf(batch, 1'600 * kUs, INT64_MAX).busy_ns, 1'600u * kUs) << "that is its own";
  // It may have grown: the next one is measured.
  Batch short_one = Known(1, 20 * kUs);
  short_one.first = true;
  EXPECT_TRUE(ChargeOf(short_one, 300 * kUs, INT64_MAX).doubtful);
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

TEST(Silence, CountsOnlyWhatIsCertain) {
  Silence silence;
  EXPECT_EQ(silence.Observe(7, 100 * kMs), 0) << "the first look knows nothing";
  EXPECT_EQ(silence.Observe(7, 150 * kMs), 50 * kMs);
  EXPECT_EQ(silence.Observe(8, 200 * kMs), 0);
  EXPECT_EQ(silence.Observe(8, 900 * kMs), 700 * kMs);
}

TEST(LocalBucket, HoldsTheRate) {
  LocalBucket bucket;
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

TEST(LocalBucket, ALongPauseEarnsOneBurst) {
  LocalBucket bucket;
  EXPECT_TRUE(bucket.MayRun(1'000 * kMs, 500'000));
  bucket.Spend(30 * kMs);
  EXPECT_FALSE(bucket.MayRun(1'001 * kMs, 500'000));
  EXPECT_TRUE(bucket.MayRun(100'000 * kMs, 500'000));
  bucket.Spend(21 * kMs);
  EXPECT_FALSE(bucket.MayRun(100'000 * kMs + 1, 500'000));
}

TEST(LocalBucket, WhatWasUsedBeforeTheSilenceWasNoticedCounts) {
  LocalBucket bucket;
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

TEST(LocalBucket, AMemberHoldsItsPartOfTheLimit) {
  protocol::DeviceLimits limits = {};
  limits.compute_limit_ppm = 600'000;
  EXPECT_EQ(PartPpm(limits), 600'000u) << "an agent that does not count";
  limits.active_members = 3;
  EXPECT_EQ(PartPpm(limits), 200'000u);
  limits.compute_limit_ppm = 1'000'000;
  EXPECT_EQ(PartPpm(limits), 1'000'000u) << "no limit, no parts";
}

}  // namespace
}  // namespace prorata::client
