// noise_probe: how noisy this machine is, and the K that a scenario needs. One line of JSON.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "noise/noise.h"
#include "noise/sampling.h"

namespace prorata::noise {
namespace {

std::atomic<bool> over = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler writes it

double CpuCount() { return static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN)); }

double OwnCpuS() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// CPU time of the whole machine that was used for anything, in seconds.
double UsedCpuS() {
  std::ifstream stat("/proc/stat");
  std::string name;
  double fields[8] = {};
  stat >> name;
  for (double& field : fields) stat >> field;
  constexpr int kIdle = 3, kIoWait = 4;
  double sum = 0;
  for (int i = 0; i < 8; ++i) sum += i == kIdle || i == kIoWait ? 0 : fields[i];
  return sum / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

nlohmann::json ToJson(const Noise& noise) {
  return {{"wakes", noise.wakes},
          {"late_mean_us", noise.late_mean_us},
          {"late_median_us", noise.late_median_us},
          {"late_p99_us", noise.late_p99_us},
          {"late_max_us", noise.late_max_us},
          {"stolen", noise.stolen},
          {"gap_max_us", noise.gap_max_us},
          {"text", Describe(noise)}};
}

struct Options {
  double seconds = 1;
  bool watch = false;
  Need need;
  int dilation = 0;
};

nlohmann::json Probe(const Options& options) {
  const auto length_ns = static_cast<int64_t>(options.seconds * 1e9);
  const Noise noise = Summarize(Measure(length_ns, true, over));
  nlohmann::json report = {{"noise", ToJson(noise)}};
  if (const auto dilation = ChooseDilation(noise, options.need)) {
    report["dilation"] = *dilation;
    report["points"] = ExpectedPoints(noise, options.need, *dilation);
  } else {
    report["refusal"] = dilation.error().message;
  }
  return report;
}

// Beside a run, until SIGTERM. A line on standard input then says how much CPU time, in seconds,
// the run itself used.
nlohmann::json Watch(const Options& options) {
  const double used_before_s = UsedCpuS();
  const int64_t begin_ns = RealClock().NowNs();
  const double before_s = OwnCpuS();
  const Noise noise = Summarize(Measure(0, false, over));
  // Threads that do nothing but wake up: what that takes of a CPU here, kernel and caches included.
  const double wake_us =
      1e6 * (OwnCpuS() - before_s) / static_cast<double>(std::max<size_t>(1, noise.wakes));
  const double used_s = UsedCpuS() - used_before_s;
  const double wall_s = static_cast<double>(RealClock().NowNs() - begin_ns) / 1e9;
  double own_s = 0;
  std::cin >> own_s;
  own_s += OwnCpuS();
  const double cpus = CpuCount();
  const double others = std::max(0.0, used_s - own_s) / (wall_s * cpus);
  nlohmann::json report = {{"noise", ToJson(noise)},
                           {"others", others},
                           {"wake_us", wake_us},
                           {"own", own_s / (wall_s * cpus)},
                           {"points", ExpectedPoints(noise, options.need, options.dilation)}};
  if (const Status trusted = JudgeRun(noise, others, options.need, options.dilation); !trusted) {
    report["refusal"] = trusted.error().message;
  }
  return report;
}

}  // namespace
}  // namespace prorata::noise

int main(int argc, char** argv) {
  using namespace prorata::noise;
  Options options;
  options.need.cpus = CpuCount();
  CLI::App app("How noisy this machine is for tests on a slowed-down clock.", "noise_probe");
  app.add_option("--seconds", options.seconds, "How long to measure")->check(CLI::Range(0.1, 60.0));
  app.add_flag("--watch", options.watch, "Measure beside a run until SIGTERM, then judge the run");
  app.add_option("--dilation", options.dilation, "With --watch: that the run had");
  app.add_option("--span-us", options.need.span_us, "Simulated time in which wake-ups cost")
      ->check(CLI::PositiveNumber);
  app.add_option("--window-us", options.need.window_us, "Simulated time that is judged")
      ->check(CLI::PositiveNumber);
  app.add_option("--wakes", options.need.wakes, "Wake-ups, one after the other, in a span");
  app.add_option("--work-us", options.need.work_us, "CPU time of a program in a span");
  app.add_option("--load", options.need.load,
                 "CPUs that all programs' calls keep busy in real time");
  app.add_option("--points", options.need.points, "Of GPU time that noise may cost")
      ->check(CLI::PositiveNumber);
  app.add_option("--least", options.need.least_dilation, "Least dilation");
  app.add_option("--most", options.need.most_dilation, "Most dilation");
  CLI11_PARSE(app, argc, argv);
  if (options.watch && options.dilation < 1) {
    std::cerr << "noise_probe: --watch needs --dilation\n";
    return 2;
  }
  struct sigaction action = {};
  action.sa_handler = [](int) { over = true; };
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
  std::cout << (options.watch ? Watch(options) : Probe(options)).dump() << std::endl;
}
