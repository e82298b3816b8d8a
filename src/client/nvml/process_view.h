#pragma once

// The parts of NVML's answers that need no NVML: how lists are handed out, how busy a share is, and
// when a sample was. Pure.

#include <cstdint>

#include "generated/nvml_abi.h"
#include "shm/limits_file.h"

namespace prorata::client {

// NVML's protocol of lists: `*count` is the room going in and the number of entries coming out; too
// little room (none, to ask how much it takes) gets that size, and nothing is written. give(i)
// writes entry i. `infos` may be null only with no room.
template <typename Info, typename Give>
nvmlReturn_t HandOut(unsigned int* count, Info* infos, uint32_t found, Give&& give) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const unsigned int room = *count;
  *count = found;
  if (found > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (found != 0 && infos == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t i = 0; i < found; ++i) give(i);
  return NVML_SUCCESS;
}

// Whether a private table of nvidia-smi is laid out as one that was seen: by its identity (16
// bytes), its first word, its size in bytes, and the version of the driver that made it.
inline constexpr unsigned char kSmiTable[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                                0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
bool KnownTable(const void* identity, uint64_t bytes, const char* driver_version);
// Its slots that tell of others.
inline constexpr uint32_t kTableDeviceByIndex = 81, kTableCompute = 213, kTableGraphics = 214,
                          kTableMps = 215;

// Percent, rounded.
inline unsigned int Percent(uint64_t ppm) {
  return static_cast<unsigned int>((ppm < 1'000'000 ? ppm + 5'000 : 1'000'000) / 10'000);
}

// The share's utilization over about the last second, in percent.
unsigned int PercentBusy(const shm::Utilization& utilization);

// When the samples of a limits file were, in microseconds since 1970 by this process's clock: the
// file has no times. Sample `number` is placed a tenth of a second after the one before it, and
// anew when that has fallen a second behind the clock. A number keeps its time, and times never go
// back. Not thread-safe.
class SampleTimes {
 public:
  // `samples` are there now, at `now_us`; a period is `period_us` long. The time of the last one.
  uint64_t Latest(uint64_t samples, uint64_t now_us, uint64_t period_us);
  uint64_t Of(uint64_t number) const { return last_us_ - (last_ - number) * period_us_; }

 private:
  uint64_t last_ = 0;  // its number is samples - 1
  uint64_t last_us_ = 0;
  uint64_t period_us_ = 1;
};

}  // namespace prorata::client
