#include "client/nvml/process_view.h"

#include <cstring>

namespace prorata::client {

bool KnownTable(const void* identity, uint64_t bytes, const char* driver_version) {
  // nvidia-smi 535 on the drivers of its branch; the simulated driver, which nobody else's version
  // is.
  constexpr const char* kSeen[] = {"535.", "580.00.00"};
  constexpr uint64_t kMaxBytes = uint64_t{64} << 10;
  bool seen = false;
  for (const char* branch : kSeen) {
    seen |= std::strncmp(driver_version, branch, std::strlen(branch)) == 0;
  }
  return seen && std::memcmp(identity, kSmiTable, sizeof kSmiTable) == 0 &&
         bytes % sizeof(void*) == 0 && bytes > kTableMps * sizeof(void*) && bytes <= kMaxBytes;
}

unsigned int PercentBusy(const shm::Utilization& utilization) {
  const uint64_t samples = utilization.samples.load();
  const uint64_t count = samples < shm::kUtilizationMeanOf ? samples : shm::kUtilizationMeanOf;
  if (count == 0) return 0;
  uint64_t sum = 0;
  for (uint64_t i = 1; i <= count; ++i) {
    sum += utilization.busy_ppm[(samples - i) % shm::kUtilizationSamples].load();
  }
  return Percent(sum / count);
}

uint64_t SampleTimes::Latest(uint64_t samples, uint64_t now_us, uint64_t period_us) {
  constexpr uint64_t kBehindUs = 1'000'000;
  const uint64_t number = samples - 1;
  if (last_us_ != 0 && number <= last_) return last_us_;
  uint64_t us = last_us_ == 0 ? now_us : last_us_ + (number - last_) * period_us;
  if (us > now_us || us + kBehindUs < now_us) us = now_us;
  // The clock was set back: times of samples are not.
  if (us <= last_us_) us = last_us_ + 1;
  last_ = number;
  last_us_ = us;
  period_us_ = period_us;
  return us;
}

}  // namespace prorata::client
