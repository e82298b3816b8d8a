// memory-waiting: the experiment of experiment.h for every policy of who is next, paired by seed.
// Prints a table; --markdown the same for docs/, --json everything (plot.py draws it).

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/memory_waiting/experiment.h"

namespace prorata::bench {
namespace {

void Print(const std::vector<Row>& rows, bool markdown) {
  const char* bar = markdown ? " | " : "  ";
  char line[200];
  std::snprintf(line, sizeof line, "%s%-10s%s%-8s%s%14s%s%18s%s%15s%s\n", markdown ? "| " : "",
                "containers", bar, "policy", bar, "makespan, s", bar, "mean suspended, s", bar,
                "longest wait, s", markdown ? " |" : "");
  std::cout << line;
  if (markdown) std::cout << "|---|---|---|---|---|\n";
  for (const Row& row : rows) {
    std::snprintf(line, sizeof line, "%s%-10d%s%-8s%s%14.1f%s%18.1f%s%15.1f%s\n",
                  markdown ? "| " : "", row.containers, bar, row.policy.c_str(), bar,
                  row.makespan_s, bar, row.mean_suspended_s, bar, row.longest_wait_s,
                  markdown ? " |" : "");
    std::cout << line;
  }
}

nlohmann::json ToJson(const std::vector<Row>& rows, uint64_t seeds) {
  nlohmann::json all = {{"seeds", seeds}, {"rows", nlohmann::json::array()}};
  for (const Row& row : rows) {
    all["rows"].push_back({{"containers", row.containers},
                           {"policy", row.policy},
                           {"median_makespan_s", row.makespan_s},
                           {"median_mean_suspended_s", row.mean_suspended_s},
                           {"median_longest_wait_s", row.longest_wait_s}});
  }
  return all;
}

int Run(int argc, char** argv) {
  CLI::App app("ConVGPU's experiment in virtual time, for every policy of who is next");
  uint64_t seeds = 200;
  bool markdown = false, json = false;
  app.add_option("--seeds", seeds, "So many draws of the containers, the same for all policies")
      ->check(CLI::Range(1, 100'000));
  app.add_flag("--markdown", markdown, "The table as in docs/reports/memory-waiting.md");
  app.add_flag("--json", json, "Everything, for programs");
  CLI11_PARSE(app, argc, argv);
  const std::vector<Row> rows = RunAll({4, 8, 12, 16, 20, 24, 28, 32, 38}, seeds);
  if (json) {
    std::cout << ToJson(rows, seeds).dump(2) << "\n";
  } else {
    Print(rows, markdown);
  }
  return 0;
}

}  // namespace
}  // namespace prorata::bench

int main(int argc, char** argv) { return prorata::bench::Run(argc, argv); }
