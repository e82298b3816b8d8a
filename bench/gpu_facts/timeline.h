#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace prorata::gpufacts {

// Start and end of a kernel, in nanoseconds of the device's clock.
using Stamp = std::pair<uint64_t, uint64_t>;

// How two processes took turns on one device, read from the stamps of their kernels.
//
// A switch may cut a kernel in two: its stamps then enclose the other's whole turn, and its length
// says nothing. So kernels are not looked at as intervals. Each start and each end is a moment at
// which that process was surely on the device; a run is a longest row of such moments of one
// process. Then
//   run   last moment - first moment of a run: the slice, short by up to one kernel at each end;
//   gap   first moment - last moment of the run before: the switch, long by as much;
//   turn  first moment of a run - that of the run before: slice and switch together, exact on
//         average, since both ends are off by the same distribution.
struct Slices {
  std::vector<double> run_us;
  std::vector<double> gap_us;
  std::vector<double> slice_us;
  double first_share = 0;  // of all run time, what the first process had
};

// Only what lies in the time in which both had work counts, without the cut runs at its ends.
// Empty if they never alternated.
Slices ReadSlices(const std::vector<Stamp>& first, const std::vector<Stamp>& second);

// From the end of each kernel to the start of the next, in ns; both sorted. Overlaps are left out.
std::vector<double> Gaps(const std::vector<Stamp>& kernels);

// The least difference between two different times in the stamps: the step of the device's clock,
// or an upper bound of it. 0 when there is none.
uint64_t ClockStep(const std::vector<Stamp>& kernels);

}  // namespace prorata::gpufacts
