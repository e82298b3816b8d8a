#include "cli/options/top_options.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/duration.h"
#include "cli/text/help.h"

namespace prorata::cli {
namespace {

constexpr int64_t kIntervalMinNs = 100 * kNsPerMs;  // what the agent says changes no faster
constexpr int64_t kIntervalMaxNs = 3600 * kNsPerS;

constexpr const char* kTopFooter =
    "Examples:\n"
    "  prorata top\n"
    "  prorata top --sort memory --interval 5s\n"
    "  prorata top --once                    one table, then it ends\n"
    "  prorata top | grep nightly            a table every second, each line with its time\n"
    "  prorata top --json | jq -c '.shares[] | [.name, .devices[0].throttle_reasons]'\n\n"
    "On a terminal: q or Ctrl-C quits, ? lists the other keys. NO_COLOR=1 turns colors off.\n\n"
    "Columns, by which a narrow window has fewer:\n"
    "  GPU TIME   the part of the last second in which the share had the GPU; on a terminal a "
    "bar,\n"
    "             with the number in TIME: the line in it is ENTITLED, and what is beyond the\n"
    "             compute limit is shaded\n"
    "  TIME       in tables: the time of day\n"
    "  ENTITLED   the part that it is due now, among the shares that want some; -: it wants none\n"
    "  LIMIT      the compute limit: the most that it may take\n"
    "  WAITED     the part of the last second in which its launches were held back: for other\n"
    "             shares, and on a terminal also by its limit (in tables: AT LIMIT)\n"
    "  MEMORY     used / limit; of a GPU, all programs / what it has\n"
    "  MEMBERS    the processes that run on the share\n"
    "  WHY        why it did not have more: docs/guide/top.md explains each reason";

int64_t IntervalOf(const std::string& text) {
  const auto interval = ParseDuration(text);
  if (!interval) throw CLI::ValidationError("--interval", interval.error().message);
  if (*interval < kIntervalMinNs || *interval > kIntervalMaxNs) {
    throw CLI::ValidationError("--interval", "'" + text + "' is not between 100ms and 1h");
  }
  return *interval;
}

}  // namespace

CLI::App* AddTop(CLI::App* app, Options* options) {
  TopOptions* top = &options->top;
  CLI::App* command = app->add_subcommand("top", "Show GPUs and shares live, and why one is slow");
  command
      ->add_option_function<std::string>(
          "--interval", [top](const std::string& text) { top->interval_ns = IntervalOf(text); },
          "Time between two updates, e.g. 500ms or 5s (default: 1s)")
      ->option_text("DURATION");
  std::vector<std::string> names;
  for (const TopSort sort : kTopSorts) names.emplace_back(NameOf(sort));
  command
      ->add_option_function<std::string>(
          "--sort",
          [top](const std::string& name) { top->sort = SortOf(name).value_or(top->sort); },
          "What to sort by: time, entitled, memory, waiting, name or gpu (default: time)")
      ->option_text("KEY")
      ->check(OneOf(names));
  command->add_flag("--reverse", top->reversed, "Sort the other way round");
  command->add_flag("--plain", top->plain, "Print a table each time, also on a terminal");
  command->add_flag("--once", top->once, "Print one table and end");
  command->add_flag("--json", options->json, "Print one JSON object a line, also on a terminal");
  command->footer(kTopFooter);
  return command;
}

}  // namespace prorata::cli
