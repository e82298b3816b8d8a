// Shares of several priorities: the highest is first, requests are kept of what is left, and nobody
// waits for ever.

#include "policy/compute/testing_time_sharing.h"

namespace prorata::policy {
namespace {

TEST_F(TimeSharingTest, TheHighestPriorityIsFirstAndNobodyWaitsForEver) {
  Add(1, Terms(0, 1, 10));
  Add(2, Terms(0));
  Wants(1, 0);
  Wants(2, 0);
  Backlog(1, kMs, kMs);
  int64_t now_ns = 0;
  for (; now_ns < 1'999 * kMs; now_ns += kMs) {
    Decide(now_ns);
    ASSERT_EQ(In(1), Phase::kRunning);
  }
  for (; In(2) == Phase::kRunnable && now_ns < 3 * kS; now_ns += kMs) {
    Decide(now_ns);
    if (In(1) == Phase::kDraining) Drains(1, now_ns);
  }
  EXPECT_EQ(In(2), Phase::kRunning);
  Wants(1, now_ns);
  Backlog(2, kMs, now_ns);
  while (In(2) == Phase::kRunning && now_ns < 3 * kS) Decide(now_ns += kMs);
  EXPECT_LE(now_ns, 2 * kS + kSliceNs + 2 * kMs) << "one slice";
}

// The highest idles for a moment now and then. What that leaves is no slice to wait for anew.
TEST_F(TimeSharingTest, TurnsThatAreTakenAtOnceAreWaitedInVain) {
  Add(1, Terms(0, 1, 10));
  Add(2, Terms(0));
  Wants(1, 0);
  Wants(2, 0);
  int64_t slice_ns = 0;
  for (int64_t now_ns = kMs; now_ns < 4 * kS; now_ns += kMs) {
    if (In(1) == Phase::kRunning) Backlog(1, kMs, now_ns + kMs);
    if (In(2) == Phase::kRunning) Backlog(2, kMs, now_ns + kMs);
    if (now_ns % (500 * kMs) == 0 && In(1) == Phase::kRunning) {
      Backlog(1, 0, LeasePolicy::kNever);
      policy_.Idle(1, now_ns);
    }
    Decide(now_ns);
    for (const LeasePolicy::Key key : {1, 2}) {
      if (In(key) == Phase::kDraining) Drains(key, now_ns);
      Wants(key, now_ns);
    }
    if (In(2) == Phase::kRunning) slice_ns += kMs;
  }
  EXPECT_GE(slice_ns, kSliceNs) << "since 2 s";
}

struct Below {
  int others;
  bool ladder;  // each has a priority of its own
};

#ifdef PRORATA_SANITIZED
constexpr int kMany = 9;
#else
constexpr int kMany = 25;
#endif

class SharesBelow : public TimeSharingTest, public ::testing::WithParamInterface<Below> {};

// Each of a priority of its own never owed anything to its class, so whichever was first kept the
// device from the others, and they from the highest, for ever.
TEST_P(SharesBelow, TakeLittleFromTheHighestAndNoneWaitsForEver) {
  constexpr uint64_t kHighest = 100;
  const int others = GetParam().others;
  std::vector<LeasePolicy::Key> keys;
  for (int i = 1; i <= others; ++i) {
    keys.push_back(static_cast<uint64_t>(i));
    Add(keys.back(), Terms(0, 1, GetParam().ladder ? i : 0));
  }
  Add(kHighest, Terms(0, 1, 90));
  KeepBusy(keys, 0, 5 * kS);  // all of them wait when it comes
  keys.push_back(kHighest);
  auto charged = KeepBusy(keys, 5 * kS, 20 * kS);
  EXPECT_GE(charged[kHighest], 0.94 * 20 * kS);
  for (int i = 1; i <= others; ++i) {
    EXPECT_GE(charged[static_cast<uint64_t>(i)], 10 * kMs) << i << " waits for ever";
  }
}

INSTANTIATE_TEST_SUITE_P(Many, SharesBelow,
                         ::testing::Values(Below{2, true}, Below{3, true}, Below{8, true},
                                           Below{kMany, true}, Below{2, false},
                                           Below{kMany, false}),
                         [](const auto& of) {
                           return std::to_string(of.param.others) +
                                  (of.param.ladder ? "Priorities" : "OfOne");
                         });

// The one that stalls has half of the device, so the highest leaves as much, and to nobody else.
TEST_F(TimeSharingTest, NobodyWaitsForEverWhereOneThatStallsHasWhatIsLeft) {
  constexpr uint64_t kHighest = 100, kWaits = 50;
  const int64_t now_ns = FirstStalls();
  policy_.Remove(2, now_ns);
  Add(kHighest, Terms(0, 1, 10), now_ns);
  Add(kWaits, Terms(0.4), now_ns);
  auto charged = KeepBusy({kHighest, kWaits}, now_ns, 9 * kS);
  EXPECT_EQ(In(1), Phase::kStalled);
  EXPECT_GE(charged[kWaits], 3 * kSliceNs / 2);
  EXPECT_GE(charged[kHighest], 0.47 * 9 * kS);
}

class SomethingIsLeft : public TimeSharingTest, public ::testing::WithParamInterface<bool> {};

// Nobody starves who only waits for others of its own priority.
TEST_P(SomethingIsLeft, RequestsAreKept) {
  const bool idle = GetParam();
  constexpr uint64_t kHighest = 100, kRequests = 50;
  const double request = idle ? 0.9 : 0.4;
  Add(kHighest, Terms(0, idle ? 1 : 0.5, 10));
  Add(kRequests, Terms(request));
  std::vector<LeasePolicy::Key> keys = {kRequests};
  for (uint64_t i = 1; i <= kMany; ++i) {
    Add(i, Terms(0));
    keys.push_back(i);
  }
  if (!idle) keys.push_back(kHighest);
  KeepBusy(keys, 0, 5 * kS);
  auto charged = KeepBusy(keys, 5 * kS, 20 * kS);
  EXPECT_GE(charged[kRequests], 0.97 * request * 20 * kS);
  for (uint64_t i = 1; i <= kMany; ++i) EXPECT_GT(charged[i], 0) << i;
}

INSTANTIATE_TEST_SUITE_P(By, SomethingIsLeft, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "AnIdleOne" : "OneWithHalf"; });

}  // namespace
}  // namespace prorata::policy
