#include "base/clock.h"

#include <gtest/gtest.h>

namespace prorata {
namespace {

TEST(VirtualClock, NeverGoesBack) {
  VirtualClock clock;
  clock.AdvanceTo(10);
  clock.AdvanceTo(5);
  EXPECT_EQ(clock.NowNs(), 10);
  clock.Advance(3);
  EXPECT_EQ(clock.NowNs(), 13);
}

TEST(DilatedClock, RunsSlowerByItsFactor) {
  const DilatedClock clock(8);
  const RealClock real;
  const int64_t before = real.NowNs();
  const int64_t dilated = clock.NowNs();
  const int64_t after = real.NowNs();
  EXPECT_GE(dilated, before / 8 - 1'000);
  EXPECT_LE(dilated, after / 8 + 1'000);
}

TEST(DilatedClock, SaysHowLongASpanReallyTakes) {
  EXPECT_EQ(DilatedClock(8).RealNs(kNsPerMs), 8 * kNsPerMs);
  EXPECT_EQ(DilatedClock(1).RealNs(kNsPerMs), kNsPerMs);
}

TEST(DilatedClock, WithoutDilationIsTheRealClock) {
  const DilatedClock clock(1);
  const int64_t before = RealClock().NowNs();
  const int64_t now = clock.NowNs();
  EXPECT_GE(now, before);
  EXPECT_LE(now, RealClock().NowNs());
}

TEST(DilatedClock, NeverSpeedsUp) { EXPECT_EQ(DilatedClock(0.1).dilation(), 1); }

}  // namespace
}  // namespace prorata
