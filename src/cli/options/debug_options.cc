#include "cli/options/debug_options.h"

#include <CLI/CLI.hpp>
#include <string>

#include "api/trace.h"

namespace prorata::cli {
namespace {

constexpr const char* kTraceFooter =
    "Examples:\n"
    "  prorata debug trace                       the last 10 s, into a file in this folder\n"
    "  prorata debug trace --seconds 60 --gpu 0 --output slow.json\n"
    "  prorata debug trace | gzip >slow.json.gz  Perfetto opens that, too\n\n"
    "Open it at https://ui.perfetto.dev, or at chrome://tracing where Chrome still has that. The\n"
    "agent always keeps the last 65536 changes of each GPU, so that what was slow a moment ago "
    "can\n"
    "still be seen; to see a program from its start, ask when it has run. What the tracks mean:\n"
    "docs/guide/trace.md. Exit status: 0; 1, there is no agent, or the file cannot be written; 2, "
    "wrong\n"
    "options.";

double SecondsOf(const std::string& text) {
  double seconds = 0;
  if (!CLI::detail::lexical_cast(text, seconds) || !(seconds > 0) ||
      !(seconds <= api::kMaxTraceSeconds)) {
    throw CLI::ValidationError("--seconds", "'" + text +
                                                "' is not a number of seconds above 0 and up to "
                                                "3600, e.g. 10 or 0.5");
  }
  return seconds;
}

}  // namespace

CLI::App* AddDebug(CLI::App* app, Options* options) {
  DebugTraceOptions* trace = &options->debug_trace;
  CLI::App* debug = app->add_subcommand("debug", "See what the agent did: a trace of the GPUs");
  debug->require_subcommand(0, 1);  // none: its help
  debug->footer("`prorata debug trace --help` says more.");
  CLI::App* command = debug->add_subcommand(
      "trace", "Write who ran and who waited, and why, for Perfetto or Chrome");
  command
      ->add_option_function<std::string>(
          "--seconds", [trace](const std::string& text) { trace->seconds = SecondsOf(text); },
          "The last so many seconds (default: 10)")
      ->option_text("N");
  command
      ->add_option("--gpu", trace->gpu,
                   "Only this GPU, an index or a UUID as `prorata gpus` shows it (default: all)")
      ->option_text("GPU");
  command
      ->add_option(
          "-o,--output", trace->output,
          "Where to write it; - is standard output (default: standard output where that is "
          "no terminal, else prorata-trace-DATE-TIME.json in this folder)")
      ->option_text("FILE");
  command->footer(kTraceFooter);
  command->callback([trace] { trace->asked = true; });
  return debug;
}

}  // namespace prorata::cli
