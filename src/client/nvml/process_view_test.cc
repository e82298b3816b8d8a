#include "client/nvml/process_view.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace prorata::client {
namespace {

TEST(HandOut, TellsHowMuchRoomItTakes) {
  int infos[3] = {7, 7, 7};
  const auto give = [&](uint32_t i) { infos[i] = static_cast<int>(i); };
  unsigned int count = 0;
  EXPECT_EQ(HandOut(&count, static_cast<int*>(nullptr), 2, give), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 2u);
  count = 1;
  EXPECT_EQ(HandOut(&count, infos, 2, give), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(infos[0], 7) << "nothing is written";
  count = 3;
  EXPECT_EQ(HandOut(&count, infos, 2, give), NVML_SUCCESS);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(infos[1], 1);
  EXPECT_EQ(infos[2], 7);
}

TEST(HandOut, NullArguments) {
  const auto give = [](uint32_t) {};
  unsigned int count = 5;
  EXPECT_EQ(HandOut(static_cast<unsigned int*>(nullptr), &count, 0, give),
            NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(HandOut(&count, static_cast<int*>(nullptr), 2, give), NVML_ERROR_INVALID_ARGUMENT);
  count = 0;
  EXPECT_EQ(HandOut(&count, static_cast<int*>(nullptr), 0, give), NVML_SUCCESS) << "nobody there";
}

TEST(KnownTable, OnlyWhatWasSeen) {
  constexpr uint64_t kBytes = 4096;
  EXPECT_TRUE(KnownTable(kSmiTable, kBytes, "535.261.03"));
  EXPECT_TRUE(KnownTable(kSmiTable, kBytes, "580.00.00"));
  EXPECT_TRUE(KnownTable(kSmiTable, uint64_t{216} * 8, "535.54.03"));
  EXPECT_FALSE(KnownTable(kSmiTable, uint64_t{215} * 8, "535.54.03")) << "ends before the lists";
  EXPECT_FALSE(KnownTable(kSmiTable, kBytes + 4, "535.54.03"));
  EXPECT_FALSE(KnownTable(kSmiTable, uint64_t{1} << 40, "535.54.03")) << "no size, but an address";
  EXPECT_FALSE(KnownTable(kSmiTable, kBytes, "580.65.06"));
  EXPECT_FALSE(KnownTable(kSmiTable, kBytes, "5355.1"));
  EXPECT_FALSE(KnownTable(kSmiTable, kBytes, ""));
  unsigned char other[16];
  for (int i = 0; i < 16; ++i) other[i] = kSmiTable[i] ^ (i == 15);
  EXPECT_FALSE(KnownTable(other, kBytes, "535.261.03"));
}

TEST(PercentBusy, IsTheMeanOfTheLastSecond) {
  shm::Utilization utilization{};
  EXPECT_EQ(PercentBusy(utilization), 0u);
  utilization.busy_ppm[0] = 500'000;
  utilization.samples = 1;
  EXPECT_EQ(PercentBusy(utilization), 50u) << "of what there is";
  for (uint64_t n = 1; n < 95; ++n) {
    utilization.busy_ppm[n % shm::kUtilizationSamples] = n < 90 ? 0 : 1'000'000;
    utilization.samples = n + 1;
  }
  EXPECT_EQ(PercentBusy(utilization), 50u) << "five of the last ten";
  utilization.busy_ppm[94 % shm::kUtilizationSamples] = 0xffff'ffff;
  EXPECT_LE(PercentBusy(utilization), 100u);
}

TEST(SampleTimes, FollowTheClock) {
  SampleTimes times;
  EXPECT_EQ(times.Latest(8, 5'000'000, 100'000), 5'000'000u);
  EXPECT_EQ(times.Of(5), 4'800'000u);
  EXPECT_EQ(times.Latest(8, 5'040'000, 100'000), 5'000'000u) << "the same sample";
  EXPECT_EQ(times.Latest(9, 5'130'000, 100'000), 5'100'000u);
  EXPECT_EQ(times.Latest(10, 5'140'000, 100'000), 5'140'000u) << "not in the future";
  EXPECT_EQ(times.Latest(11, 9'000'000, 100'000), 9'000'000u) << "a program that did not ask long";
}

TEST(SampleTimes, NeverGoBackWhateverTheClockDoes) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    SampleTimes times;
    uint64_t samples = 1 + random() % 5, now_us = 1'000'000'000, last_us = 0, last_samples = 0;
    for (int step = 0; step < 200; ++step) {
      samples += random() % 4;
      now_us += random() % 400'000;
      if (random() % 40 == 0) now_us -= 500'000'000;
      const uint64_t us = times.Latest(samples, now_us, 100'000);
      if (samples == last_samples) {
        ASSERT_EQ(us, last_us) << "seed " << seed;
      } else {
        ASSERT_GT(us, last_us) << "seed " << seed;
      }
      last_us = us;
      last_samples = samples;
      if (now_us < 600'000'000) now_us = 1'000'000'000;
    }
  }
}

}  // namespace
}  // namespace prorata::client
