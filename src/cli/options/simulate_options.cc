#include "cli/options/simulate_options.h"

#include <CLI/CLI.hpp>

namespace prorata::cli {
namespace {

constexpr const char* kSimulateFooter =
    "Examples:\n"
    "  prorata simulate --nodes nodes.csv --pods pods.csv\n"
    "  prorata simulate --nodes nodes.csv --pods pods.csv --policy fgd,prorata --seeds 42-51 \\\n"
    "      --plot comparison.svg\n"
    "  prorata simulate --nodes nodes.csv --pods pods.csv --arrivals times\n"
    "  prorata simulate --gpus 100000\n\n"
    "Files have the form of the openb trace, which comes with the sources "
    "(bench/placement/openb);\n"
    "what the figures mean: docs/guide/placement.md. Policies: random, dot-product, packing, "
    "clustering,\n"
    "best-fit, fgd, fgd-random-ties, gpu-admission, kubeshare, prorata. Exit status: 0; 1, a file\n"
    "cannot be written; 2, wrong options or a file that cannot be read.";

}  // namespace

CLI::App* AddSimulate(CLI::App* app, Options* options) {
  SimulateOptions* simulate = &options->simulate;
  CLI::App* command = app->add_subcommand(
      "simulate", "Place a workload on a cluster, by several policies, without either");
  command->add_option("--nodes", simulate->nodes, "The cluster (default: made up, of --gpus)")
      ->option_text("FILE");
  command->add_option("--pods", simulate->pods, "The workload (default: made up)")
      ->option_text("FILE");
  command->add_option("--policy", simulate->policies, "Policies to compare (default: prorata)")
      ->option_text("NAME[,NAME...]")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option(
          "--arrivals", simulate->arrivals,
          "sampled: in an order that is drawn, up to --load, for ever; trace: once, in the "
          "order of the file; times: at their own times, until they end (default: sampled)")
      ->option_text("HOW");
  command
      ->add_option(
          "--load", simulate->load_percent,
          "With sampled arrivals: GPU that is asked for, % of what there is (default: 130)")
      ->option_text("PERCENT")
      ->check(CLI::Range(1.0, 1000.0));
  command->add_option("--seeds", simulate->seeds, "A run for each (default: 42)")
      ->option_text("N[-N][,N...]");
  command
      ->add_option("--gpus", simulate->gpus,
                   "A cluster of about so many GPUs, its nodes drawn from the file's (default: the "
                   "file's nodes)")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  command
      ->add_option("--ties", simulate->ties,
                   "Which of equal nodes: shuffled, name, reverse or random (default: shuffled)")
      ->option_text("ORDER");
  command
      ->add_option("--look-ahead", simulate->look_ahead,
                   "Of prorata: so many waiting shares are placed together (default: 1)")
      ->option_text("N")
      ->check(CLI::Range(1, 32));
  command
      ->add_option("--move-every", simulate->move_every,
                   "Of prorata: a share may be moved once in so many placements (default: never)")
      ->option_text("N")
      ->check(CLI::Range(1, 1'000'000));
  command->add_flag("--cpu-nodes", simulate->cpu_nodes, "Nodes may have no GPU");
  command->add_flag("!--no-plan", simulate->plan,
                    "Leave out how many GPUs the load needs with and without sharing");
  command->add_flag("!--no-progress", simulate->progress, "Show no progress bar");
  command->add_flag("--json", options->json, "Print JSON");
  command->add_option("--csv", simulate->csv, "Write each run's points there (default: nowhere)")
      ->option_text("FILE");
  command
      ->add_option("--plot", simulate->plot, "Draw the means there, by gnuplot (default: nowhere)")
      ->option_text("FILE.svg|FILE.png");
  command->footer(kSimulateFooter);
  return command;
}

}  // namespace prorata::cli
