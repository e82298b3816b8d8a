#include "noise/noise.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

namespace prorata::noise {
namespace {

double Us(int64_t ns) { return static_cast<double>(ns) / 1e3; }

std::string Rounded(double value, int digits) {
  std::ostringstream out;
  out.setf(std::ios::fixed);
  out.precision(digits);
  out << value;
  return out.str();
}

// What must be slowed down: real microseconds that are lost in a span.
double LostUs(const Noise& noise, const Need& need) {
  return need.wakes * noise.late_mean_us + need.work_us / std::max(0.05, 1 - noise.stolen);
}

double StallUs(const Noise& noise) { return std::max(noise.late_max_us, noise.gap_max_us); }

}  // namespace

Noise Summarize(Samples samples) {
  Noise noise;
  std::vector<int64_t>& late = samples.late_ns;
  noise.wakes = late.size();
  if (!late.empty()) {
    std::sort(late.begin(), late.end());
    const double sum = std::accumulate(late.begin(), late.end(), 0.0);
    noise.late_mean_us = sum / 1e3 / static_cast<double>(late.size());
    noise.late_median_us = Us(late[late.size() / 2]);
    noise.late_p99_us = Us(late[late.size() * 99 / 100]);
    noise.late_max_us = Us(late.back());
  }
  if (samples.spun_ns > 0) {
    const double gaps = std::accumulate(samples.gap_ns.begin(), samples.gap_ns.end(), 0.0);
    noise.stolen = std::min(1.0, gaps / static_cast<double>(samples.spun_ns));
  }
  for (const int64_t gap : samples.gap_ns) noise.gap_max_us = std::max(noise.gap_max_us, Us(gap));
  return noise;
}

double ExpectedPoints(const Noise& noise, const Need& need, int dilation) {
  const double lost = 100 * LostUs(noise, need) / (dilation * need.span_us);
  const double stall = 100 * StallUs(noise) / (dilation * need.window_us);
  return std::max(lost, stall);
}

Result<int> ChooseDilation(const Noise& noise, const Need& need) {
  const auto refuse = [&](const std::string& why) {
    return Fail("noisy", "the machine is too noisy: " + why + " (" + Describe(noise) + ")");
  };
  if (noise.wakes == 0) return refuse("no wake-up was measured");
  if (noise.stolen > kMaxStolen) {
    return refuse("others take " + Rounded(100 * noise.stolen, 0) + " % of its CPUs, more than " +
                  Rounded(100 * kMaxStolen, 0) + " %");
  }
  const double for_lateness = ExpectedPoints(noise, need, 1) / need.points;
  const double for_load = need.load / (need.cpus * (1 - noise.stolen) * kMaxLoad);
  const double wanted = std::max(for_lateness, for_load);
  const int dilation = std::max(need.least_dilation, static_cast<int>(std::ceil(wanted)));
  if (dilation > need.most_dilation) {
    return refuse("time would have to be slowed down " + std::to_string(dilation) +
                  " times, more than " + std::to_string(need.most_dilation));
  }
  return dilation;
}

Status JudgeRun(const Noise& seen, double others, const Need& need, int dilation) {
  const auto refuse = [&](const std::string& why) {
    return Fail("noisy", "the run was disturbed: " + why + " (" + Describe(seen) + ")");
  };
  if (seen.wakes == 0) return refuse("no wake-up was measured");
  if (others > kMaxOthers) {
    return refuse("other programs used " + Rounded(100 * others, 0) + " % of the CPUs, more than " +
                  Rounded(100 * kMaxOthers, 0) + " %");
  }
  const double points = ExpectedPoints(seen, need, dilation);
  if (points > kRunSlack * need.points) {
    return refuse("late wake-ups may have cost " + Rounded(points, 1) +
                  " points of GPU time, more than " + Rounded(kRunSlack * need.points, 1) +
                  ", with time slowed down " + std::to_string(dilation) + " times");
  }
  return {};
}

std::string Describe(const Noise& noise) {
  std::string text = std::to_string(noise.wakes) + " wake-ups late by " +
                     Rounded(noise.late_mean_us, 0) + " us, median " +
                     Rounded(noise.late_median_us, 0) + ", p99 " + Rounded(noise.late_p99_us, 0) +
                     ", most " + Rounded(noise.late_max_us, 0);
  if (noise.gap_max_us > 0) {
    text += "; " + Rounded(100 * noise.stolen, 1) + " % of the CPUs stolen, " +
            Rounded(noise.gap_max_us, 0) + " us at most";
  }
  return text;
}

}  // namespace prorata::noise
