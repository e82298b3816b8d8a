#include "sim/cluster/simulate.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <utility>

namespace prorata::sim::cluster {
namespace {

constexpr size_t kMaxSeeds = 1000;
constexpr int kBarWidth = 30;

Result<std::vector<uint64_t>> SeedsOf(const std::string& text) {
  std::vector<uint64_t> seeds;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    const char* at = text.data() + from;
    const char* const end = text.data() + comma;
    from = comma + 1;
    uint64_t first = 0, last = 0;
    auto [rest, code] = std::from_chars(at, end, first);
    last = first;
    if (code == std::errc() && rest != end && *rest == '-') {
      const auto second = std::from_chars(rest + 1, end, last);
      rest = second.ptr;
      code = second.ec;
    }
    if (code != std::errc() || rest != end || last < first || last - first >= kMaxSeeds) {
      return Fail("usage",
                  "--seeds: '" + text + "' is not a list of seeds such as 42, 42-51 or 1,5");
    }
    for (uint64_t seed = first; seed <= last; ++seed) seeds.push_back(seed);
  }
  return seeds;
}

struct Input {
  Nodes nodes;
  Pods pods;
};

Result<Input> ReadInput(const SimulateOptions& options) {
  Input input;
  if (options.nodes.empty()) {
    if (options.gpus == 0) {
      return Fail("usage",
                  "simulate: give --nodes FILE, or --gpus N for a cluster that is made up");
    }
    input.nodes = SyntheticNodes();
  } else {
    auto nodes = ReadNodes(options.nodes, options.cpu_nodes);
    if (!nodes) return std::unexpected(nodes.error());
    input.nodes = std::move(*nodes);
  }
  if (options.pods.empty()) {
    constexpr uint64_t kSeed = 42;
    input.pods = SyntheticPods(kSeed);
  } else {
    auto pods = ReadPods(options.pods, input.nodes.models);
    if (!pods) return std::unexpected(pods.error());
    input.pods = std::move(*pods);
  }
  if (options.arrivals == "times" && !input.pods.has_times) {
    return Fail("usage",
                (options.pods.empty() ? "the made-up workload" : options.pods) +
                    ": --arrivals times needs creation_time and deletion_time of every pod");
  }
  return input;
}

template <typename Value>
Result<Value> OneOf(const std::string& option, const std::string& text,
                    const std::vector<std::pair<std::string, Value>>& values) {
  std::string known;
  for (const auto& [name, value] : values) {
    if (name == text) return value;
    known += (known.empty() ? "" : ", ") + name;
  }
  return Fail("usage", option + ": '" + text + "' is not one of " + known);
}

Result<RunOptions> RunOptionsOf(const SimulateOptions& options) {
  RunOptions run;
  const auto arrivals = OneOf<Arrivals>(
      "--arrivals", options.arrivals,
      {{"sampled", Arrivals::kSampled}, {"trace", Arrivals::kTrace}, {"times", Arrivals::kTimes}});
  if (!arrivals) return std::unexpected(arrivals.error());
  const auto ties = OneOf<Ties>("--ties", options.ties,
                                {{"shuffled", Ties::kShuffled},
                                 {"name", Ties::kName},
                                 {"reverse", Ties::kReverse},
                                 {"random", Ties::kRandom}});
  if (!ties) return std::unexpected(ties.error());
  run.arrivals = *arrivals;
  run.ties = *ties;
  run.load = options.load_percent / 100;
  run.look_ahead = static_cast<size_t>(options.look_ahead);
  run.move_every = static_cast<uint32_t>(options.move_every);
  return run;
}

class Progress {
 public:
  Progress(bool wanted, size_t runs) : shown_(wanted && isatty(STDERR_FILENO) == 1), runs_(runs) {}
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }

  void Show(size_t run, double part, const std::string& what) {
    if (!shown_) return;
    const double done = (static_cast<double>(run) + part) / static_cast<double>(runs_);
    const int full = static_cast<int>(done * kBarWidth);
    std::fprintf(stderr, "\r\033[K[%s%s] %3.0f %%  %s", std::string(full, '#').c_str(),
                 std::string(kBarWidth - full, ' ').c_str(), 100 * done, what.c_str());
  }

 private:
  bool shown_;
  size_t runs_;
};

Result<Study> RunAll(const SimulateOptions& options) {
  auto run = RunOptionsOf(options);
  if (!run) return std::unexpected(run.error());
  const auto seeds = SeedsOf(options.seeds);
  if (!seeds) return std::unexpected(seeds.error());
  for (const std::string& name : options.policies) {
    if (PolicyOf(name)) continue;
    std::string known;
    for (const std::string& each : PolicyNames()) known += (known.empty() ? "" : ", ") + each;
    return Fail("usage", "--policy: '" + name + "' is not one of " + known);
  }
  const auto input = ReadInput(options);
  if (!input) return std::unexpected(input.error());

  Study study;
  run->note_gpus = !options.packing.empty();
  study.arrivals = run->arrivals;
  study.floor = FloorOf(input->pods);
  study.pods = static_cast<int64_t>(input->pods.pods.size());
  Progress progress(options.progress, options.policies.size() * seeds->size());
  size_t done = 0;
  for (const std::string& name : options.policies) {
    PolicyRuns runs;
    runs.policy = name;
    runs.seeds = *seeds;
    run->policy = *PolicyOf(name);
    for (const uint64_t seed : *seeds) {
      run->seed = seed;
      const Nodes nodes =
          options.gpus > 0 ? DrawNodes(input->nodes, options.gpus, seed) : input->nodes;
      study.nodes = static_cast<int64_t>(nodes.nodes.size());
      study.gpus = nodes.GpuMilli() / policy::placement::kGpuMilli;
      const std::string what = name + ", seed " + std::to_string(seed);
      runs.runs.push_back(RunPolicy(nodes, input->pods, *run,
                                    [&](double part) { progress.Show(done, part, what); }));
      ++done;
    }
    study.policies.push_back(std::move(runs));
  }
  if (options.plan) {
    progress.Show(done, 0, "GPUs needed with and without sharing");
    study.plan = PlanGpus(input->nodes, input->pods, run->arrivals);
    study.planned = true;
  }
  return study;
}

bool WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return true;
  std::fprintf(stderr, "prorata: %s: cannot be written\n", path.c_str());
  return false;
}

}  // namespace

int Simulate(const SimulateOptions& options) {
  const auto study = RunAll(options);
  if (!study) {
    std::fprintf(stderr, "prorata: %s\n", study.error().message.c_str());
    return 2;
  }
  std::fputs((options.json ? JsonOf(*study) : TableOf(*study)).c_str(), stdout);
  if (!options.csv.empty() && !WriteFile(options.csv, CsvOf(*study))) return 1;
  if (!options.packing.empty() && !WriteFile(options.packing, PackingOf(*study))) return 1;
  if (options.plot.empty()) return 0;
  const auto plotted = WritePlot(*study, options.plot);
  if (plotted) return 0;
  std::fprintf(stderr, "prorata: %s\n", plotted.error().message.c_str());
  return plotted.error().code == "usage" ? 2 : 1;
}

}  // namespace prorata::sim::cluster
