#pragma once

// `prorata simulate`: runs policies on a cluster and a workload, and reports.

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/cluster/simulation.h"

namespace prorata::sim::cluster {

// As typed on the command line.
struct SimulateOptions {
  std::string nodes;  // files; empty: made up
  std::string pods;
  std::vector<std::string> policies = {"prorata"};
  std::string arrivals = "sampled";  // sampled, trace, times
  std::string ties = "shuffled";     // shuffled, name, reverse, random
  std::string seeds = "42";          // 42, 42-51 or 1,5,9
  double load_percent = 130;
  int64_t gpus = 0;  // of the cluster; 0: what the file has
  int64_t look_ahead = 1;
  int64_t move_every = 0;
  bool cpu_nodes = false;
  bool plan = true;
  bool json = false;
  bool progress = true;  // where standard error is a terminal
  std::string csv;       // files to write; empty: none
  std::string packing;
  std::string plot;  // .svg or .png
};

// Prints to standard output, and one line for an error to standard error. Returns the exit status:
// 0; 1, a file cannot be written; 2, bad options or bad input.
int Simulate(const SimulateOptions& options);

// The runs of one policy, by seed.
struct PolicyRuns {
  std::string policy;
  std::vector<uint64_t> seeds;
  std::vector<RunResult> runs;

  // Means over the runs.
  double Unallocated(int load_percent) const;
  double Fragmentation(int load_percent) const;
  double Waiting(int load_percent) const;
};

// How many GPUs of this kind of cluster the pods need if none is to be dropped, or to wait, with
// shares as they are and with each part of a GPU made a whole one. Nodes are added in an order
// that is drawn, and again from the first when they run out.
struct Plan {
  int64_t gpus_shared = 0;
  int64_t gpus_whole = 0;
};
Plan PlanGpus(const Nodes& nodes, const Pods& pods, Arrivals arrivals);

struct Study {
  std::string name;
  Arrivals arrivals = Arrivals::kSampled;
  int64_t nodes = 0;
  int64_t gpus = 0;
  int64_t pods = 0;
  Floor floor;
  std::vector<PolicyRuns> policies;
  bool planned = false;
  Plan plan;
};

// report.cc, plot.cc
std::string TableOf(const Study& study);
std::string JsonOf(const Study& study);
std::string CsvOf(const Study& study);
// What each GPU has at the end of each run.
std::string PackingOf(const Study& study);
// By gnuplot. Errors: "usage" for a name that ends in neither .svg nor .png, "no_gnuplot".
Status WritePlot(const Study& study, const std::string& path);

// synthetic.cc. A cluster of about `gpus` GPUs whose nodes are drawn from `nodes`, all of them
// before any is taken again.
Nodes DrawNodes(const Nodes& nodes, int64_t gpus, uint64_t seed);
// Where there is no file: nodes of 8 GPUs, and a mix of parts of GPUs and whole ones.
Nodes SyntheticNodes();
Pods SyntheticPods(uint64_t seed);

}  // namespace prorata::sim::cluster
