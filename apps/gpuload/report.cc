#include "apps/gpuload/report.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

namespace prorata::gpuload {

nlohmann::json SummarizeStamps(const BusyKernel::Stamps& stamps) {
  uint64_t busy_ns = 0;
  uint64_t reached = 0;
  for (const auto& [start, end] : stamps.kernels) {  // ordered by start
    const uint64_t from = std::max(start, reached);
    if (end > from) busy_ns += end - from;
    reached = std::max(reached, end);
  }
  return {{"stamped", stamps.kernels.size()},
          {"stamps_lost", stamps.launches - stamps.kernels.size()},
          {"device_time_ns", stamps.sum_ns},
          {"device_busy_ns", busy_ns},
          {"first_start_ns", stamps.kernels.empty() ? 0 : stamps.kernels.front().first},
          {"last_end_ns", reached}};
}

Status WriteStamps(const std::string& path, const BusyKernel::Stamps& stamps) {
  std::ofstream file(path);
  file << nlohmann::json(stamps.kernels).dump() << "\n";
  file.close();
  if (!file) return FailErrno("stamps", "cannot write '" + path + "'", errno);
  return {};
}

}  // namespace prorata::gpuload
