#pragma once

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "bench/gpu_facts/bench.h"

// One function for each subject. Each leaves the device as it found it, ends soon after
// Bench::TimeIsUp(), and returns figures (figure.h) by name, with what a reader needs beside them.
// An error means that the whole subject could not be measured.
namespace prorata::gpufacts {

// Turns of two processes that both have work all the time.
Result<nlohmann::json> MeasureTimeSlice(const Bench& bench);
// Host cost of recording, asking and awaiting an event.
Result<nlohmann::json> MeasureEvents(const Bench& bench);
// Device memory of another process's context, bare and after its first kernel.
Result<nlohmann::json> MeasureContextMemory(const Bench& bench);
// Device memory that plain allocations of several sizes really take, and how small ones share.
Result<nlohmann::json> MeasureAllocation(const Bench& bench);
// Steps in which the default memory pool grows.
Result<nlohmann::json> MeasurePool(const Bench& bench);
// Host cost of a launch, round trip, the depth at which a launch blocks.
Result<nlohmann::json> MeasureLaunches(const Bench& bench);
// Time between kernels that follow each other in one stream, and the step of the device's clock.
Result<nlohmann::json> MeasureKernelGap(const Bench& bench);
// Bandwidths, and a kernel beside a copy of the same length.
Result<nlohmann::json> MeasureCopies(const Bench& bench);

}  // namespace prorata::gpufacts
