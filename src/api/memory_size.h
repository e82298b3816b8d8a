#pragma once

// An amount of device memory as a person says it: "4GiB", or "25%" of the memory of whichever
// device it is asked of. Pure; thread-safe.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/fraction.h"
#include "base/result.h"

namespace prorata::api {

inline constexpr uint64_t kMemoryStep = uint64_t{2} << 20;  // what a driver hands memory out in

struct MemorySize {
  MemorySize(uint64_t size = 0) : bytes(size) {}  // implicit: a size is most often bytes
  explicit MemorySize(Fraction of_device) : part(of_device) {}

  uint64_t bytes = 0;
  Fraction part = {};  // above 0: of the device's memory, whatever `bytes` says

  // Of a device with `total_bytes`: a part in whole steps of 2 MiB, and at least one.
  uint64_t Of(uint64_t total_bytes) const;
  bool operator==(const MemorySize&) const = default;
};

// "4GiB", "25%". "bad_size": neither, 0, or more than 100 %.
Result<MemorySize> ParseMemorySize(std::string_view text);
// The same for a request, which may be "0" as well: nothing is set aside.
Result<MemorySize> ParseMemoryRequest(std::string_view text);

// "4 GiB", "25%".
std::string FormatMemorySize(const MemorySize& size);

}  // namespace prorata::api
