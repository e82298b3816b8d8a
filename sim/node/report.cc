#include "sim/node/report.h"

#include <time.h>

#include <algorithm>
#include <cmath>

namespace prorata::simulation {
namespace {

// Goes on to `end_ns`, and remembers on the way what every step gave.
void RunUntil(World& world, int64_t end_ns, Report* report) {
  while (world.now_ns() < end_ns) {
    const int64_t next_ns = (world.now_ns() / kStepNs + 1) * kStepNs;
    world.RunUntil(std::min(end_ns, next_ns));
    if (world.now_ns() % kStepNs != 0) continue;
    for (size_t spec = 0; spec < report->programs.size(); ++spec) {
      report->programs[spec].busy_ns.push_back(world.ProgramBusyNs(spec));
    }
    report->device_ns.push_back(world.DeviceBusyNs());
  }
}

void ReportGaps(const World& world, Report* report) {
  const Scenario& scenario = world.scenario();
  std::vector<int64_t> gaps;
  int64_t sum_ns = 0;
  for (const GapWatch::Gap& gap : world.gaps()) {
    if (gap.end_ns <= scenario.warmup_ns) continue;
    gaps.push_back(gap.ns);
    sum_ns += std::min(gap.ns, gap.end_ns - scenario.warmup_ns);
  }
  report->gaps = SpreadOf(gaps);
  report->waiting_idle =
      static_cast<double>(sum_ns) / static_cast<double>(scenario.duration_ns - scenario.warmup_ns);
}

// The device time of each program of the scenario until now.
std::vector<int64_t> BusyNow(World& world) {
  std::vector<int64_t> busy;
  for (size_t spec = 0; spec < world.scenario().programs.size(); ++spec) {
    busy.push_back(world.ProgramBusyNs(spec));
  }
  return busy;
}

double SeenOf(const Expectation& expect, const Scenario& scenario, const Report& report) {
  if (expect.of == Expectation::Of::kDeviceUse) return report.device_use;
  double sum = 0;
  for (size_t i = 0; i < scenario.programs.size(); ++i) {
    const ProgramSpec& program = scenario.programs[i];
    const bool is_program = expect.of == Expectation::Of::kProgram;
    if ((is_program ? program.name : program.share) == expect.name) {
      sum += report.programs[i].gpu_time;
    }
  }
  return sum;
}

void Judge(const Scenario& scenario, Report* report) {
  for (const Expectation& expect : scenario.expect) {
    ExpectationReport& out = report->expectations.emplace_back();
    out.of = expect.of == Expectation::Of::kDeviceUse ? "device use" : expect.name;
    out.expected = expect.gpu_time;
    out.tolerance = expect.tolerance_points / 100;
    out.seen = SeenOf(expect, scenario, *report);
    out.met = std::abs(out.seen - out.expected) <= out.tolerance;
  }
}

// After all programs have ended: by then everything is charged.
void ReportCharges(World& world, const Scenario& scenario, Report* report) {
  if (world.agent() == nullptr) return;
  for (size_t i = 0; i < scenario.programs.size(); ++i) {
    const std::string& share = scenario.programs[i].share;
    int64_t busy_ns = 0;
    for (size_t j = 0; j < scenario.programs.size(); ++j) {
      if (scenario.programs[j].share == share) busy_ns += world.ProgramBusyNs(j);
    }
    if (busy_ns == 0) continue;
    report->programs[i].charged =
        static_cast<double>(world.agent()->ChargedNs(share)) / static_cast<double>(busy_ns);
  }
}

}  // namespace

bool Report::met() const {
  return failure.empty() && std::all_of(expectations.begin(), expectations.end(),
                                        [](const ExpectationReport& e) { return e.met; });
}

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

Spread SpreadOf(std::vector<int64_t> sample) {
  Spread spread;
  spread.count = sample.size();
  if (sample.empty()) return spread;
  std::sort(sample.begin(), sample.end());
  const auto rank = [&](double part) {
    const auto position = static_cast<size_t>(std::ceil(part * static_cast<double>(sample.size())));
    return sample[std::max<size_t>(position, 1) - 1];
  };
  spread.p50_ns = rank(0.5);
  spread.p99_ns = rank(0.99);
  spread.most_ns = sample.back();
  return spread;
}

Report RunScenario(const Scenario& scenario, const WorldOptions& given) {
  WorldOptions options = given;
  options.keep_shares = true;  // else their charges would be gone with them
  const double began_s = CpuSeconds();
  Report report;
  report.seed = options.seed;
  World world(scenario, options);
  for (const ProgramSpec& spec : scenario.programs) {
    report.programs.emplace_back().name = spec.name;
    report.programs.back().busy_ns.push_back(0);
  }
  report.device_ns.push_back(0);
  RunUntil(world, scenario.warmup_ns, &report);
  const std::vector<int64_t> before = BusyNow(world);
  const int64_t device_before = world.DeviceBusyNs();
  const int64_t switching_before = world.DeviceSwitchingNs();
  RunUntil(world, scenario.duration_ns, &report);
  if (options.at_end) options.at_end(world);
  const std::vector<int64_t> after = BusyNow(world);
  const auto window = static_cast<double>(scenario.duration_ns - scenario.warmup_ns);
  report.device_use = static_cast<double>(world.DeviceBusyNs() - device_before) / window;
  report.switching = static_cast<double>(world.DeviceSwitchingNs() - switching_before) / window;
  int64_t all = 0;
  for (size_t i = 0; i < before.size(); ++i) all += after[i] - before[i];
  for (size_t i = 0; i < before.size(); ++i) {
    ProgramReport& program = report.programs[i];
    program.gpu_time =
        all == 0 ? 0 : static_cast<double>(after[i] - before[i]) / static_cast<double>(all);
    std::vector<int64_t> latencies;
    for (const auto& process : world.processes()) {
      if (&process->spec() != &scenario.programs[i]) continue;
      program.launches += process->launches();
      for (const Process::Request& request : process->requests()) {
        if (request.done_ns > scenario.warmup_ns) latencies.push_back(request.latency_ns);
      }
    }
    program.latency = SpreadOf(std::move(latencies));
  }
  ReportGaps(world, &report);
  Judge(scenario, &report);
  world.Finish();
  ReportCharges(world, scenario, &report);
  report.failure = world.failure();
  report.events = world.events();
  report.cpu_s = CpuSeconds() - began_s;
  return report;
}

}  // namespace prorata::simulation
