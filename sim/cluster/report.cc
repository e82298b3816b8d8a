#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "sim/cluster/simulate.h"

namespace prorata::sim::cluster {
namespace {

constexpr std::array<int, 6> kLoads = {80, 90, 95, 100, 110, 130};

[[gnu::format(printf, 1, 2)]] std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

template <typename Of>
double MeanOf(const PolicyRuns& runs, Of of) {
  double sum = 0;
  for (const RunResult& run : runs.runs) sum += static_cast<double>(of(run));
  return sum / static_cast<double>(runs.runs.size());
}

double DeviationAt(const PolicyRuns& runs, int load) {
  if (runs.runs.size() < 2) return 0;
  const double mean = runs.Unallocated(load);
  double sum = 0;
  for (const RunResult& run : runs.runs) {
    sum += std::pow(run.At(load).unallocated_percent - mean, 2);
  }
  return std::sqrt(sum / static_cast<double>(runs.runs.size() - 1));
}

double MostLoad(const Study& study) {
  double most = 0;
  for (const PolicyRuns& runs : study.policies) {
    for (const RunResult& run : runs.runs) most = std::max(most, run.points.back().load_percent);
  }
  return most;
}

std::string LoadTable(const Study& study) {
  const double most = MostLoad(study);
  std::string text = "Unallocated GPU, % of all, by the load that has arrived (% of all):\n\n";
  text += Format("%-16s", "POLICY");
  for (const int load : kLoads) {
    if (load <= most) text += Format("%7d", load);
  }
  text += "  ± at 100  FRAGMENTED at 80, 90  MOVES per 100 placed  DROPPED\n";
  for (const PolicyRuns& runs : study.policies) {
    text += Format("%-16s", runs.policy.c_str());
    for (const int load : kLoads) {
      if (load <= most) text += Format("%7.2f", runs.Unallocated(load));
    }
    const double moves = MeanOf(runs, [](const RunResult& run) {
      return 100.0 * static_cast<double>(run.moves) /
             std::max<double>(1, static_cast<double>(run.placed));
    });
    text += Format("  %8.2f  %13.1f %6.1f  %20.1f  %7.0f\n", DeviationAt(runs, 100),
                   runs.Fragmentation(80), runs.Fragmentation(90), moves,
                   MeanOf(runs, [](const RunResult& run) { return run.dropped; }));
  }
  return text;
}

std::string TimesTable(const Study& study) {
  std::string text =
      "With departures, at the trace's own times:\n\n"
      "POLICY            WASTED BY FRAGMENTATION, GPU h   WAITED  MEAN WAIT, s  LONGEST, s\n";
  for (const PolicyRuns& runs : study.policies) {
    text += Format("%-16s  %30.1f  %7.1f  %12.1f  %10.0f\n", runs.policy.c_str(),
                   MeanOf(runs, [](const RunResult& run) { return run.wasted_gpu_hours; }),
                   MeanOf(runs, [](const RunResult& run) { return run.waited; }),
                   MeanOf(runs, [](const RunResult& run) { return run.mean_wait_s; }),
                   MeanOf(runs, [](const RunResult& run) { return run.longest_wait_s; }));
  }
  return text;
}

nlohmann::json RunJson(uint64_t seed, const RunResult& run) {
  nlohmann::json points = nlohmann::json::array();
  for (const Point& point : run.points) {
    points.push_back({{"load_percent", point.load_percent},
                      {"unallocated_percent", point.unallocated_percent},
                      {"fragmentation_percent", point.fragmentation_percent},
                      {"waiting", point.waiting}});
  }
  return {{"seed", seed},
          {"placed", run.placed},
          {"dropped", run.dropped},
          {"moves", run.moves},
          {"moved_gain_milli", run.moved_gain_milli},
          {"wasted_gpu_hours", run.wasted_gpu_hours},
          {"waited", run.waited},
          {"mean_wait_s", run.mean_wait_s},
          {"longest_wait_s", run.longest_wait_s},
          {"points", points}};
}

}  // namespace

double PolicyRuns::Unallocated(int load) const {
  return MeanOf(*this, [&](const RunResult& run) { return run.At(load).unallocated_percent; });
}
double PolicyRuns::Fragmentation(int load) const {
  return MeanOf(*this, [&](const RunResult& run) { return run.At(load).fragmentation_percent; });
}
double PolicyRuns::Waiting(int load) const {
  return MeanOf(*this, [&](const RunResult& run) { return run.At(load).waiting; });
}

std::string TableOf(const Study& study) {
  std::string text = Format("%lld nodes, %lld GPUs, %lld pods; means of %zu run%s\n\n",
                            static_cast<long long>(study.nodes), static_cast<long long>(study.gpus),
                            static_cast<long long>(study.pods), study.policies.front().runs.size(),
                            study.policies.front().runs.size() == 1 ? "" : "s");
  text += study.arrivals == Arrivals::kTimes ? TimesTable(study) : LoadTable(study);
  if (study.arrivals != Arrivals::kTimes && study.floor.gpu_milli > 0) {
    text += Format(
        "\nFloor: %lld shares of %.2f GPU leave %.2f %% of the GPU that is asked for; smaller "
        "shares "
        "can use %.2f %%: %.2f %%\n",
        static_cast<long long>(study.floor.shares), study.floor.gpu_milli / 1000.0,
        study.floor.left_percent, study.floor.usable_percent, study.floor.percent());
  }
  if (study.planned) {
    const Plan& plan = study.plan;
    text += Format(
        "\nThis load needs %lld GPUs with sharing and %lld without: %lld fewer (%.1f %%)\n",
        static_cast<long long>(plan.gpus_shared), static_cast<long long>(plan.gpus_whole),
        static_cast<long long>(plan.gpus_whole - plan.gpus_shared),
        100 * (1 - static_cast<double>(plan.gpus_shared) / static_cast<double>(plan.gpus_whole)));
  }
  return text;
}

std::string JsonOf(const Study& study) {
  nlohmann::json json = {{"nodes", study.nodes}, {"gpus", study.gpus}, {"pods", study.pods}};
  json["floor"] = {{"gpu_milli", study.floor.gpu_milli},
                   {"shares", study.floor.shares},
                   {"left_percent", study.floor.left_percent},
                   {"usable_percent", study.floor.usable_percent},
                   {"percent", study.floor.percent()}};
  if (study.planned) {
    json["plan"] = {{"gpus_shared", study.plan.gpus_shared}, {"gpus_whole", study.plan.gpus_whole}};
  }
  json["policies"] = nlohmann::json::array();
  for (const PolicyRuns& runs : study.policies) {
    nlohmann::json all = nlohmann::json::array();
    for (size_t i = 0; i < runs.runs.size(); ++i)
      all.push_back(RunJson(runs.seeds[i], runs.runs[i]));
    json["policies"].push_back({{"policy", runs.policy}, {"runs", all}});
  }
  return json.dump(1) + "\n";
}

std::string CsvOf(const Study& study) {
  std::string text = "policy,seed,load_percent,unallocated_percent,fragmentation_percent,waiting\n";
  for (const PolicyRuns& runs : study.policies) {
    for (size_t i = 0; i < runs.runs.size(); ++i) {
      for (const Point& point : runs.runs[i].points) {
        text += Format("%s,%llu,%.4f,%.4f,%.4f,%lld\n", runs.policy.c_str(),
                       static_cast<unsigned long long>(runs.seeds[i]), point.load_percent,
                       point.unallocated_percent, point.fragmentation_percent,
                       static_cast<long long>(point.waiting));
      }
    }
  }
  return text;
}

std::string PackingOf(const Study& study) {
  std::string text = "policy,seed,node,gpu,gpu_milli,gpu_memory_mib\n";
  for (const PolicyRuns& runs : study.policies) {
    for (size_t i = 0; i < runs.runs.size(); ++i) {
      for (const GpuUse& use : runs.runs[i].gpus) {
        text += runs.policy + "," + std::to_string(runs.seeds[i]) + "," + use.node +
                Format(",%d,%d,%d\n", use.gpu, use.gpu_milli, use.memory_mib);
      }
    }
  }
  return text;
}

}  // namespace prorata::sim::cluster
