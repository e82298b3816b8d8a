#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/gpuload/gpu.h"
#include "base/result.h"

namespace prorata::gpuload {

// What the stamps say: {"stamped", "stamps_lost", "device_time_ns" (sum of all launches),
// "device_busy_ns" (union of those in the ring), "first_start_ns", "last_end_ns"}.
nlohmann::json SummarizeStamps(const BusyKernel::Stamps& stamps);

// [[start, end], ...] in nanoseconds of the device's clock, for a referee of several programs.
Status WriteStamps(const std::string& path, const BusyKernel::Stamps& stamps);

}  // namespace prorata::gpuload
