#include "cli/options/simulate_options.h"

#include <CLI/CLI.hpp>

#include "cli/text/help.h"

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
    "best-fit, fgd, fgd-random-ties, gpu-admission, kubeshare, prorata, extender (prorata's,\n"
    "for who does not know the workload), dra (extender's nodes, on each the fullest GPU).\n"
    "Exit status: 0; 1, a file cannot be written; 2, wrong options or a file that cannot be read.";

CLI::Validator Percentage() {
  return CLI::Validator(
      [](const std::string& text) {
        double percent = 0;
        const bool read = CLI::detail::lexical_cast(text, percent);
        if (read && percent >= 1 && percent <= 1000) return std::string();
        return "'" + text + "' is not a percentage from 1 to 1000";
      },
      "");
}

}  // namespace

CLI::App* AddSimulate(CLI::App* app, Options* options) {
  SimulateOptions* simulate = &options->simulate;
  CLI::App* command = app->add_subcommand(
      "simulate", "Try placement policies on a cluster of your own, which need not exist");
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
          "How shares arrive. sampled: drawn at random up to --load, never ending; trace: in the "
          "order of the file, once; times: at the file's times, until they end (default: sampled)")
      ->option_text("HOW");
  command
      ->add_option(
          "--load", simulate->load_percent,
          "With sampled arrivals: how much GPU is asked for, in % of what there is (default: 130)")
      ->option_text("PERCENT")
      ->check(Percentage());
  command
      ->add_option("--seeds", simulate->seeds,
                   "Seeds of the random choices, a run for each (default: 42)")
      ->option_text("N[-N][,N...]");
  command
      ->add_option(
          "--gpus", simulate->gpus,
          "A cluster of about N GPUs, its nodes drawn from the file's (default: the file's "
          "nodes)")
      ->option_text("N")
      ->check(WholeFrom(1, 1'000'000));
  command
      ->add_option(
          "--ties", simulate->ties,
          "Which of equal nodes is taken: shuffled, name, reverse or random (default: shuffled)")
      ->option_text("ORDER");
  command
      ->add_option("--look-ahead", simulate->look_ahead,
                   "Policy prorata: how many waiting shares are placed together (default: 1)")
      ->option_text("N")
      ->check(WholeFrom(1, 32));
  command
      ->add_option("--move-every", simulate->move_every,
                   "Policy prorata: move at most one share in N placements (default: none)")
      ->option_text("N")
      ->check(WholeFrom(1, 1'000'000));
  command->add_flag("--cpu-nodes", simulate->cpu_nodes, "Take nodes without a GPU, too");
  command->add_flag_callback(
      "--no-plan", [simulate] { simulate->plan = false; },
      "Leave out how many GPUs the load needs with and without sharing");
  command->add_flag_callback(
      "--no-progress", [simulate] { simulate->progress = false; }, "Show no progress bar");
  command->add_flag("--json", options->json, "Print JSON");
  command->add_option("--csv", simulate->csv, "Write each run's points there (default: nowhere)")
      ->option_text("FILE");
  command
      ->add_option("--packing", simulate->packing,
                   "Write there what each GPU has at the end of each run (default: nowhere)")
      ->option_text("FILE");
  command
      ->add_option("--plot", simulate->plot, "Draw the means there, by gnuplot (default: nowhere)")
      ->option_text("FILE.svg|FILE.png");
  command->footer(kSimulateFooter);
  return command;
}

}  // namespace prorata::cli
