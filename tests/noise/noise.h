#pragma once

// How noisy the machine is, and how much its time must be slowed down so that a scenario on the
// simulated GPU is judged truly: the K of DilatedClock. Pure: samples in, K or a refusal out.
//
// What goes wrong on a noisy machine. The simulated device keeps exact time whoever is late; a late
// program only leaves it without work. In a *span* of a program's simulated time (between two of
// its synchronisations, or a slice under prorata) `wakes` threads wake one another; each is late by
// `late`, in real time, and so by late / K in simulated time. Of the span, that part is lost:
//
//   points lost = 100 * (wakes * mean(late) + work / (1 - stolen)) / (K * span)
//
// `work` is the CPU time of those of the program's own calls for which the device waits in a span;
// where others steal a part of the CPUs it takes longer. One stall (max(late), the longest gap)
// must not move the whole window either:
//
//   points of a stall = 100 * stall / (K * window)
//
// K is the smallest whole number that keeps both within the points asked for, and the CPU time of
// all programs' calls (`load`, in CPUs, at K = 1) below kMaxLoad of what others leave of the CPUs.
// Refused, with figures: where no K up to `most_dilation` does, and where more than kMaxStolen of
// the CPUs is stolen: a second of samples does not say what a machine that busy does next.

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace prorata::noise {

inline constexpr double kMaxStolen = 0.35;
// While a scenario runs: one busy program beside it on two CPUs is no reason, two are.
inline constexpr double kMaxOthers = 0.6;
inline constexpr double kMaxLoad = 0.5;
// What is seen while a scenario runs includes the scenario's own work, so it may be so many times
// what was asked for before.
inline constexpr double kRunSlack = 2;

struct Samples {
  std::vector<int64_t> late_ns;  // of each wake-up, after its time
  std::vector<int64_t> gap_ns;   // without progress, of threads that were busy all the while ...
  int64_t spun_ns = 0;           // ... for so long together; 0: none was
};

struct Noise {
  size_t wakes = 0;
  double late_mean_us = 0;
  double late_median_us = 0;
  double late_p99_us = 0;
  double late_max_us = 0;
  double stolen = 0;  // part of the CPUs' time that busy threads did not get
  double gap_max_us = 0;
};

struct Need {
  double span_us = 10'000;       // simulated
  double window_us = 1'000'000;  // simulated
  double wakes = 4;              // in a span, one after the other
  double work_us = 100;          // of a CPU, in a span
  double load = 0.1;             // CPUs that all programs' calls keep busy in real time
  double cpus = 1;               // that there are
  double points = 1;             // of GPU time that noise may cost
  int least_dilation = 1;
  int most_dilation = 100;
};

Noise Summarize(Samples samples);

// Points of GPU time that noise like this is expected to cost.
double ExpectedPoints(const Noise& noise, const Need& need, int dilation);

// "noisy" with the figures.
Result<int> ChooseDilation(const Noise& noise, const Need& need);

// Whether noise seen during a run with this dilation leaves it to be trusted. "noisy" with the
// figures. Nothing is known of stolen time then (busy threads would steal it themselves): `others`
// is the part of the machine's CPU time that programs of nobody's scenario used meanwhile.
Status JudgeRun(const Noise& seen, double others, const Need& need, int dilation);

std::string Describe(const Noise& noise);

}  // namespace prorata::noise
