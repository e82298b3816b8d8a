// simulation SCENARIO.toml...: runs scenarios in the one-process simulation and prints what each
// program got. Exit status 0: all expectations were met; 1: not all; 2: it could not be run.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "sim/node/chrome_trace.h"
#include "sim/node/policies.h"
#include "sim/node/random_world.h"
#include "sim/node/report.h"

namespace {

using namespace prorata::simulation;

double Ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

nlohmann::json ToJson(const Spread& spread) {
  return {{"count", spread.count},
          {"p50_ms", Ms(spread.p50_ns)},
          {"p99_ms", Ms(spread.p99_ns)},
          {"most_ms", Ms(spread.most_ns)}};
}

nlohmann::json InMs(const std::vector<int64_t>& times) {
  nlohmann::json json = nlohmann::json::array();
  for (const int64_t ns : times) json.push_back(Ms(ns));
  return json;
}

nlohmann::json ToJson(const Scenario& scenario, const std::string& policy, const Report& report,
                      bool series) {
  nlohmann::json json = {{"scenario", scenario.name},
                         {"seed", report.seed},
                         {"policy", scenario.prorata ? policy : "none"},
                         {"device_use", report.device_use},
                         {"switching", report.switching},
                         {"gaps", ToJson(report.gaps)},
                         {"waiting_idle", report.waiting_idle},
                         {"events", report.events},
                         {"cpu_s", report.cpu_s},
                         {"failure", report.failure},
                         {"met", report.met()}};
  for (const ProgramReport& program : report.programs) {
    json["programs"].push_back({{"name", program.name},
                                {"gpu_time", program.gpu_time},
                                {"charged", program.charged},
                                {"launches", program.launches}});
    if (program.latency.count > 0) json["programs"].back()["latency"] = ToJson(program.latency);
    if (series) json["programs"].back()["busy_ms"] = InMs(program.busy_ns);
  }
  if (series) {
    json["step_ms"] = Ms(kStepNs);
    json["device_ms"] = InMs(report.device_ns);
  }
  for (const ExpectationReport& expect : report.expectations) {
    json["expectations"].push_back({{"of", expect.of},
                                    {"expected", expect.expected},
                                    {"seen", expect.seen},
                                    {"tolerance", expect.tolerance},
                                    {"met", expect.met}});
  }
  return json;
}

void Print(const Scenario& scenario, const Report& report) {
  std::printf("%s (seed %llu)\n", scenario.name.c_str(),
              static_cast<unsigned long long>(report.seed));
  for (const ProgramReport& program : report.programs) {
    std::printf(
        "  %-16s %6.2f %% of the GPU time; charged %6.2f %% of what it used; %llu launches\n",
        program.name.c_str(), 100 * program.gpu_time, 100 * program.charged,
        static_cast<unsigned long long>(program.launches));
  }
  for (const ProgramReport& program : report.programs) {
    const Spread& latency = program.latency;
    if (latency.count == 0) continue;
    std::printf("  %-16s %zu requests, p50 %.3f ms, p99 %.3f ms, at most %.3f ms\n",
                program.name.c_str(), latency.count, Ms(latency.p50_ns), Ms(latency.p99_ns),
                Ms(latency.most_ns));
  }
  if (report.gaps.count > 0) {
    std::printf("  %-16s %.2f %%, p99 %.3f ms, at most %.3f ms\n", "idle while waited",
                100 * report.waiting_idle, Ms(report.gaps.p99_ns), Ms(report.gaps.most_ns));
  }
  std::printf("  %-16s %6.2f %%, switching contexts %.2f %%\n", "device in use",
              100 * report.device_use, 100 * report.switching);
  for (const ExpectationReport& expect : report.expectations) {
    std::printf("  %-7s %-16s %6.2f %%, expected %.2f +- %.2f\n", expect.met ? "met" : "NOT MET",
                expect.of.c_str(), 100 * expect.seen, 100 * expect.expected,
                100 * expect.tolerance);
  }
  if (!report.failure.empty()) std::printf("  FAILED: %s\n", report.failure.c_str());
}

void PrintRow(const Scenario& scenario, const Report& report) {
  std::string parts;
  for (const ProgramReport& program : report.programs) {
    char part[64];
    std::snprintf(part, sizeof part, "%s %.1f ", program.name.c_str(), 100 * program.gpu_time);
    parts += part;
  }
  std::printf("%-58s %-36s %6.2f  %s\n", scenario.name.c_str(), parts.c_str(),
              100 * report.device_use, report.met() ? "met" : "NOT MET");
}

int RunRandomWorlds(uint64_t seed, int runs, WorldKind kind, const std::string& trace_file) {
  int failures = 0;
  for (int run = 0; run < runs; ++run, ++seed) {
    std::ofstream trace;
    if (!trace_file.empty()) trace.open(trace_file, std::ios::trunc);
    const std::string wrong = CheckRandomWorld(seed, kind, trace_file.empty() ? nullptr : &trace);
    if (wrong.empty()) continue;
    std::printf("seed %llu: %s\n%s", static_cast<unsigned long long>(seed), wrong.c_str(),
                Describe(RandomScenario(seed, kind)).c_str());
    std::fflush(stdout);
    ++failures;
  }
  std::printf("%d random worlds: %d with something wrong\n", runs, failures);
  return failures > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs scenarios in the one-process simulation of the GPU, the agent and programs.");
  std::vector<std::string> files;
  uint64_t seed = 1;
  int runs = 1;
  std::string trace_file;
  bool json = false;
  bool random = false;
  app.add_option("scenario", files, "scenario files");
  app.add_flag("--random", random, "random worlds instead, checked for what is always true");
  WorldKind kind = WorldKind::kFew;
  app.add_flag_callback(
      "--crowds", [&] { kind = WorldKind::kCrowd; }, "with --random: of 8 to 40 programs each");
  app.add_flag_callback(
      "--ranks", [&] { kind = WorldKind::kRanks; },
      "with --random: with jobs on several GPUs whose ranks differ");
  app.add_flag_callback(
      "--models", [&] { kind = WorldKind::kModels; },
      "with --random: that launch as models do: many functions, a slow host, bursts");
  app.add_option("--seed,--from", seed, "of the first run");
  app.add_option("--runs", runs, "so many runs, each with the next seed")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option(
      "--trace", trace_file,
      "write every event of the last run to this file; of a scenario, and where the name "
      "ends in .json, what `prorata debug trace` writes");
  bool table = false;
  app.add_flag("--table", table, "one line for each run");
  app.add_flag("--json", json, "one JSON object for each run");
  bool series = false;
  app.add_flag("--series", series, "with --json: the device time of every 100 ms, too");
  std::string policy = "default";
  app.add_option("--policy", policy,
                 "who decides turns: default, gemini, gemini-least, round-robin; or none: without "
                 "prorata, whatever the scenario says")
      ->check([](const std::string& name) {
        return name == "none" || MakePolicy(name) ? "" : "there is no policy " + name;
      });
  CLI11_PARSE(app, argc, argv);
  if (files.empty() != random) {
    std::fprintf(stderr, "simulation: name scenario files, or --random\n");
    return 2;
  }
  if (random) return RunRandomWorlds(seed, runs, kind, trace_file);
  if (table) std::printf("%-58s %-36s %6s\n", "scenario", "% of the GPU time", "in use");
  bool met = true;
  for (const std::string& file : files) {
    auto scenario = ReadScenario(file);
    if (!scenario) {
      std::fprintf(stderr, "simulation: %s\n", scenario.error().message.c_str());
      return 2;
    }
    if (policy == "none") scenario->prorata = false;
    for (int run = 0; run < runs; ++run) {
      WorldOptions options;
      options.policy = policy;
      options.watch_gaps = true;
      options.seed = seed + static_cast<uint64_t>(run);
      std::ofstream trace;
      if (!trace_file.empty()) {
        trace.open(trace_file, std::ios::trunc);
        if (!trace) {
          std::fprintf(stderr, "simulation: cannot write %s\n", trace_file.c_str());
          return 2;
        }
        if (trace_file.ends_with(".json")) {
          options.at_end = [&trace](World& world) { WriteChromeTrace(world, trace); };
        } else {
          options.trace = &trace;
        }
      }
      const Report report = RunScenario(*scenario, options);
      met = met && report.met();
      if (json) {
        std::printf("%s\n", ToJson(*scenario, policy, report, series).dump().c_str());
      } else if (table) {
        PrintRow(*scenario, report);
      } else {
        Print(*scenario, report);
      }
      if (!report.met()) {
        std::fprintf(stderr,
                     "simulation: to see this run again: simulation %s --policy %s --seed %llu "
                     "--trace FILE\n",
                     file.c_str(), policy.c_str(), static_cast<unsigned long long>(report.seed));
      }
    }
  }
  return met ? 0 : 1;
}
