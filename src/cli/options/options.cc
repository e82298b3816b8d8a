#include "cli/options/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "api/control.h"
#include "base/bytes.h"
#include "base/duration.h"
#include "cli/options/container_options.h"
#include "cli/options/debug_options.h"
#include "cli/options/run_command.h"
#include "cli/options/share_options.h"
#include "cli/options/simulate_options.h"
#include "cli/options/terms_options.h"
#include "cli/options/top_options.h"
#include "cli/options/users.h"
#include "cli/text/help.h"
#include "cli/text/one_line.h"
#include "cli/text/version.h"

namespace prorata::cli {
namespace {

constexpr const char* kRunFooter =
    "Examples:\n"
    "  prorata run -- python train.py                 all free memory, GPU time when it is there\n"
    "  prorata run -m 4G --compute 0.3 -- python train.py\n"
    "  prorata run --gpu 1 --compute-limit 50% --name nightly -- ./job --epochs 3\n"
    "  prorata run -m 4G --on-full wait=5m -- ./job               waits where the GPU is full\n"
    "  prorata run --memory-request 4G -m 50% -- ./job            4 GiB guaranteed, and while the\n"
    "                                                  GPU has it, up to half of its memory\n"
    "  prorata run -m 4G --wait=1h -- ./job                       waits in line for its share\n"
    "  prorata run --gpus 2 -m 4G -- ./job                        two GPUs, 4 GiB of each\n"
    "  prorata run --gpu 0,2 -m 4G,2=6G -- ./job                  4 GiB of each, of GPU 2 6 GiB\n\n"
    "SIZE is a number and a unit: B, K, M, G or T (KB, Ki, KiB and so on are the same, in small\n"
    "letters too; each is 1024 of the one before), or N% of the GPU's memory. FRACTION is 0.3 or\n"
    "30%, of one GPU's time. DURATION is a number and us, ms, s, m or h.\n\n"
    "With several GPUs the values hold for each of them. GPU=VALUE, separated by commas, "
    "overrides\n"
    "a value for one GPU that --gpu or --gpus all names. The program sees them in the order of\n"
    "--gpu as GPU 0, 1 and so on. Kernels that wait for each other across GPUs (collectives) need\n"
    "them all at the same time: --gang.\n\n"
    "Once its share is made, prorata becomes the program: signals, terminal and exit status are "
    "the\n"
    "program's own. If it fails before: 127, no such program; 126, it cannot be executed; 2,\n"
    "wrong options; 1, the share was refused. The share ends with the program and its children. "
    "With "
    "the\n"
    "--name of a share of `create` the program runs on that one.\n"
    "If no agent answers, one is started; it ends after its last share.";

constexpr const char* kPsFooter =
    "Examples:\n"
    "  prorata ps\n"
    "  prorata ps train serve          these shares only\n"
    "  prorata rm -f $(prorata ps -q)  ends all shares\n"
    "  prorata ps --waiting            the shares that wait in line to be made, and for what\n\n"
    "Columns:\n"
    "  NAME       the share; (ending): it ends with its last process\n"
    "  GPU        the GPU's index, as `prorata gpus` shows it; a share has a line for each\n"
    "  MEMORY     used / limit, and in brackets the part of the used that no allocation asked for\n"
    "             (CUDA contexts, code). `request`: what is guaranteed, where that is not all of\n"
    "             the limit. `over`: above the limit, so nothing more is given. `waits 12 s`: an\n"
    "             allocation waits for free memory. BYPASS?: memory was taken past prorata\n"
    "  COMPUTE    the compute request and limit, as parts of the GPU's time; the priority, if it "
    "is\n"
    "             not 0; `gang`: it runs on all its GPUs at the same time\n"
    "  GPU TIME   the part of the GPU's time that the share had in about the last second\n"
    "  ENTITLED   the part that it is due now, among the shares that want some; -: it wants none\n"
    "  MEMBERS    the processes that run on it; (1 OUTSIDE): a process of its container uses the\n"
    "             GPU past the share\n"
    "  CONTAINER  the container that has the share; shown where a share has one";

constexpr const char* kGpusFooter =
    "Examples:\n"
    "  prorata gpus\n"
    "  prorata gpus --json | jq '.[0].uuid'\n\n"
    "Columns:\n"
    "  GPU               the index, for --gpu; UUID, in the last column, does as well\n"
    "  NAME              the model\n"
    "  MEMORY            in use now, by all programs / all that the GPU has\n"
    "  PROMISED          what the memory requests of its shares add up to; in brackets what their\n"
    "                    limits add up to, if that is more, and what `agent --overcommit` allows\n"
    "  BORROWED          what shares hold beyond their requests; shown where limits are above "
    "them\n"
    "  OTHERS            in use by programs that are on no share, and by the driver\n"
    "  COMPUTE PROMISED  what the compute requests of its shares add up to, of the GPU's time\n"
    "  GPU TIME          the part of about the last second that its shares had together\n"
    "  TIME OF OTHERS    the part in which programs on no share ran; -: not known\n"
    "  SHARES            how many shares are on it\n\n"
    "With several GPUs a second table shows the links between them, in the words of\n"
    "`nvidia-smi topo --matrix`.";

constexpr const char* kAgentFooter =
    "Examples:\n"
    "  prorata agent                      in the foreground, until SIGTERM or SIGINT\n"
    "  prorata agent --log-level debug\n"
    "  prorata agent --overcommit 1.5     on every GPU; 1.5,0=2: on GPU 0 twice\n"
    "  prorata agent --resource-config GPU-8a6c...=/etc/gemini/resource-config.txt\n"
    "  prorata agent --metrics 9400       metrics at http://127.0.0.1:9400/metrics\n"
    "  PRORATA_DIR=/tmp/mine prorata agent   in another folder; a GPU has one agent";

constexpr const char* kUpdateFooter =
    "Examples:\n"
    "  prorata update nightly -m 6G\n"
    "  prorata update nightly --memory-request 2G -m 50%\n"
    "  prorata update nightly --compute 0.5 --compute-limit 0.8 --weight 200\n"
    "  prorata update nightly -m 2=6G             of its GPU 2 only; 4G,2=6G: of each, but 2\n"
    "  prorata update nightly --allow-users alice,1001\n\n"
    "What is not named stays; a memory request that was the whole limit stays the whole limit. "
    "The\n"
    "change is in force at once, whole or not at all. A memory limit below what the share holds\n"
    "takes nothing from its programs: they get no more until they have freed enough.";

constexpr const char* kEventsFooter =
    "Examples:\n"
    "  prorata events                        from now on, until Ctrl-C\n"
    "  prorata events --all --no-follow      the last thousand or so, and no more\n"
    "  prorata events --json --share nightly | jq -r 'select(.event == \"refusal\") | .pid'\n\n"
    "A line for each event: time, share (-: none), what happened. With --json an object for each;\n"
    "docs/reference/events.md of prorata's sources explains its fields. Sequence numbers begin "
    "with\n"
    "1 when an agent starts; --json shows them. Exit status: 0, all was printed, or Ctrl-C; 1, no\n"
    "agent runs, or it refused; 3, the agent ended.";

ParseOutcome UsageError(const std::string& message) {
  ParseOutcome outcome;
  outcome.err = "prorata: " + OneLine(message) + "\n";
  outcome.status = kExitUsage;
  return outcome;
}

Status FillUpdate(const CLI::App& app, const RawTerms& raw, const std::string& allow_users,
                  UpdateOptions* update) {
  if (auto ok = api::ValidateShareName(update->name); !ok) {
    return Fail("usage", "update: " + ok.error().message);
  }
  if (auto ok = ReadTermsOptions(app, raw, &update->change); !ok) return ok;
  if (app.count("--allow-users") > 0) {
    auto users = ReadUsers(allow_users);
    if (!users) return std::unexpected(users.error());
    update->change.allow_users = std::move(*users);
  }
  if (update->change.Empty()) {
    return Fail(
        "usage",
        "update: nothing to change; give --memory, --memory-request, --compute, --compute-limit, "
        "--weight, --priority, --yield-within, --on-full, --gang or --allow-users");
  }
  return {};
}

Status FillPs(const PsOptions& ps, bool json) {
  if (ps.quiet && json) {
    return Fail("usage", "ps: --quiet prints names and --json objects; give one");
  }
  for (const std::string& name : ps.names) {
    if (auto ok = api::ValidateShareName(name); !ok) {
      return Fail("usage", "ps: " + ok.error().message);
    }
  }
  return {};
}

Status FillEvents(bool all, EventsOptions* events) {
  if (all && events->since) {
    return Fail("usage", "events: --all and --since say two different beginnings; give one");
  }
  if (all || (!events->follow && !events->since)) events->since = 0;
  if (events->share.empty()) return {};
  if (auto ok = api::ValidateShareName(events->share); !ok) {
    return Fail("usage", "--share: " + ok.error().message);
  }
  return {};
}

// CLI11 takes `--quiet=3` for `--quiet`. A flag whose help has a value (`--wait[=DURATION]`) keeps
// it.
void RefuseValuesOfFlags(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    if (option->get_expected_max() == 0 && option->get_option_text().empty()) {
      option->disable_flag_override();
    }
  }
  for (CLI::App* sub : app->get_subcommands({})) RefuseValuesOfFlags(sub);
}

class Parser {
 public:
  Parser() : app_("", "prorata") {
    app_.formatter(std::make_shared<HelpFormatter>());
    app_.get_formatter()->label("Positionals", "Arguments");
    app_.set_help_flag("-h,--help", "Print this help");
    app_.require_subcommand(1);
    app_.set_version_flag("-v,--version", "");
    AddRun();
    containers_ = AddContainerCommands(&app_, &raw_create_, &options_);
    AddUpdate();
    AddPs();
    AddEvents();
    top_ = AddTop(&app_, &options_);
    debug_ = AddDebug(&app_, &options_);
    simulate_ = AddSimulate(&app_, &options_);
    AddAgent();
    RefuseValuesOfFlags(&app_);
    // Known here for the list of commands: ParseCommandLine acts on them.
    app_.add_subcommand("help", "Print the help of a command");
    app_.add_subcommand("version", "Print the version");
  }

  ParseOutcome Parse(const std::vector<std::string>& arguments) {
    const auto separator = std::find(arguments.begin(), arguments.end(), "--");
    const bool separated = separator != arguments.end();
    std::vector<std::string> after(separated ? separator + 1 : separator, arguments.end());
    std::vector<std::string> before(arguments.begin(), separator);
    std::reverse(before.begin(), before.end());  // what CLI11 wants of a vector
    try {
      app_.parse(before);
    } catch (const CLI::CallForHelp&) {
      return Text(app_.help());
    } catch (const CLI::CallForVersion&) {
      return Version();
    } catch (const CLI::ParseError& error) {
      return UsageError(UsageErrorText(app_, error, arguments));
    }
    return Finish(separated, after);
  }

  bool Knows(const std::string& command) const {
    const auto named = [&](const CLI::App* sub) { return sub->get_name() == command; };
    return !app_.get_subcommands(named).empty();
  }

  static ParseOutcome Version() { return Text(std::string("prorata ") + kVersion + "\n"); }

 private:
  static ParseOutcome Text(std::string text) {
    ParseOutcome outcome;
    outcome.out = std::move(text);
    return outcome;
  }

  void AddRun() {
    run_ = app_.add_subcommand("run", "Run a program on a share");
    run_->prefix_command();
    run_->add_option("--name", options_.run.name,
                     "Name of the share that is made (default: made up), or of one that `prorata "
                     "create` made")
        ->option_text("NAME");
    AddShareOptions(run_, &raw_run_, &options_.run);
    run_->footer(kRunFooter);
  }

  void AddUpdate() {
    update_ = app_.add_subcommand("update", "Change a share while its programs run");
    update_->add_option("name", options_.update.name, "The share")->required()->option_text("NAME");
    AddTermsOptions(update_, &raw_update_, {});
    update_
        ->add_option("--allow-users", raw_update_users_,
                     "Other users whose programs may run on the share from now on, in place of "
                     "those of before: names, ids, `all` or `none`; who runs on it stays")
        ->option_text("all|none|USER[,USER...]");
    update_->footer(kUpdateFooter);
  }

  void AddPs() {
    ps_ = app_.add_subcommand("ps", "List the shares: memory, GPU time, processes");
    ps_->add_option("names", options_.ps.names, "These shares only (default: all)")
        ->option_text("NAME...");
    ps_->add_flag("-q,--quiet", options_.ps.quiet, "Print the names only");
    ps_->add_flag("--json", options_.json, "Print JSON");
    ps_->add_flag("--waiting", options_.ps.waiting, "Only the shares that wait in line to be made");
    ps_->footer(kPsFooter);
    gpus_ = app_.add_subcommand("gpus", "List the GPUs: memory in use, what is promised to shares");
    gpus_->add_flag("--json", options_.json, "Print JSON");
    gpus_->footer(kGpusFooter);
  }

  void AddEvents() {
    events_ = app_.add_subcommand("events", "Print what happens, as it happens");
    events_->add_flag("--json", options_.json, "Print one JSON object a line");
    events_
        ->add_option("--since", options_.events.since,
                     "Begin after the event of this sequence number (default: with the next; with "
                     "--no-follow, with the first that the agent still has)")
        ->option_text("N")
        ->check(WholeFrom(0, INT64_MAX));
    events_->add_flag("-a,--all", all_events_, "Begin with the first that the agent still has");
    events_->add_option("--share", options_.events.share, "Only events of this share")
        ->option_text("NAME");
    events_->add_flag_callback(
        "--no-follow", [this] { options_.events.follow = false; },
        "Print the events that the agent has, and end");
    events_->footer(kEventsFooter);
  }

  void AddAgent() {
    agent_ = app_.add_subcommand("agent", "Run the agent, the daemon that keeps the shares");
    agent_
        ->add_option("--log-level", options_.agent.log_level,
                     "How much it logs: trace, debug, info, warn or error (default: info)")
        ->option_text("LEVEL")
        ->check(OneOf({"trace", "debug", "info", "warn", "error"}));
    agent_->add_flag("--exit-when-idle", options_.agent.exit_when_idle,
                     "End after the last share has ended");
    agent_
        ->add_option(
            "--overcommit", raw_overcommit_,
            "Let the memory limits of a GPU's shares add up to RATIO times the memory that "
            "shares may hold; such shares are guaranteed nothing (default: what shares that are "
            "still there were made under, else 1)")
        ->option_text("[GPU=]RATIO[,...]");
    agent_
        ->add_option(
            "--elastic-ceiling", raw_elastic_ceilings_,
            "Let shares grow above their compute requests only while all of them together "
            "use less than FRACTION of the GPU's time (default: what shares that are still "
            "there were made under, else 1)")
        ->option_text("[GPU=]FRACTION[,...]")
        ->allow_extra_args(false);
    agent_
        ->add_option(
            "--resource-config", raw_resource_configs_,
            "Make a share of each client in Gemini's resource-config.txt, for `prorata run "
            "--name ID`; the file is watched. May be given again for another GPU (default: "
            "none)")
        ->option_text("GPU=FILE")
        ->allow_extra_args(false);
    agent_
        ->add_option("--metrics", raw_metrics_,
                     "Offer metrics for Prometheus at http://ADDRESS:PORT/metrics, to whoever can "
                     "connect. A PORT alone is on 127.0.0.1; port 0 is a free one, which the log "
                     "names (default: none)")
        ->option_text("[ADDRESS:]PORT");
    agent_
        ->add_option("--cdi-dir", options_.agent.cdi_dir,
                     "Where container engines look for devices (default: /var/run/cdi; for an "
                     "agent that is not root's, cdi in its own folder)")
        ->option_text("FOLDER");
    // For `run`, and for tests on a simulated GPU; of no use to a person, so not in the help.
    agent_->add_option("--ready-fd", options_.agent.ready_fd)
        ->group("")
        ->check(WholeFrom(0, INT32_MAX));
    agent_->add_option("--dilation", options_.agent.dilation)
        ->group("")
        ->check(WholeFrom(1, 10000));
    agent_->add_option("--slow-disk-ms", options_.agent.slow_disk_ms)
        ->group("")
        ->check(WholeFrom(0, INT32_MAX));
    agent_->footer(kAgentFooter);
  }

  // What `agent` was given, as it is read.
  Status FillAgent() {
    for (const std::string& text : raw_overcommit_) {
      auto overcommit = agent::ParseOvercommit(text);
      if (!overcommit) return Fail("usage", "--overcommit: " + overcommit.error().message);
      auto& all = options_.agent.overcommit;
      all.insert(all.end(), overcommit->begin(), overcommit->end());
    }
    for (const std::string& text : raw_elastic_ceilings_) {
      auto ceiling = agent::ParseElasticCeiling(text);
      if (!ceiling) return Fail("usage", "--elastic-ceiling: " + ceiling.error().message);
      auto& all = options_.agent.elastic_ceilings;
      all.insert(all.end(), ceiling->begin(), ceiling->end());
    }
    for (const std::string& text : raw_resource_configs_) {
      auto file = agent::ParseResourceConfigFile(text);
      if (!file) return Fail("usage", "--resource-config: " + file.error().message);
      options_.agent.resource_configs.push_back(*file);
    }
    if (raw_metrics_) {
      auto metrics = agent::ParseMetricsAddress(*raw_metrics_);
      if (!metrics) return Fail("usage", "--metrics: " + metrics.error().message);
      options_.agent.metrics = *metrics;
    }
    return {};
  }

  ParseOutcome Finish(bool separated, const std::vector<std::string>& after) {
    ParseOutcome outcome;
    if (run_->parsed()) {
      options_.verb = Verb::kRun;
      if (auto ok = CheckWait(*run_, raw_run_); !ok) return UsageError(ok.error().message);
      if (auto ok = FillCommand(run_->remaining(), separated, after, &options_.run); !ok) {
        return UsageError(ok.error().message);
      }
      if (auto ok = FillShare(*run_, raw_run_, &options_.run); !ok) {
        return UsageError(ok.error().message);
      }
    } else if (debug_->parsed() && !options_.debug_trace.asked) {
      return Text(debug_->help("prorata"));
    } else {
      if (separated) return UsageError("'--' and a command belong to `prorata run` only");
      options_.verb = ps_->parsed()         ? Verb::kPs
                      : gpus_->parsed()     ? Verb::kGpus
                      : update_->parsed()   ? Verb::kUpdate
                      : events_->parsed()   ? Verb::kEvents
                      : top_->parsed()      ? Verb::kTop
                      : debug_->parsed()    ? Verb::kDebugTrace
                      : simulate_->parsed() ? Verb::kSimulate
                                            : containers_.Parsed().value_or(Verb::kAgent);
      Status ok = FillContainerCommand(containers_, raw_create_, &options_);
      if (ok && options_.verb == Verb::kUpdate) {
        ok = FillUpdate(*update_, raw_update_, raw_update_users_, &options_.update);
      }
      if (ok && options_.verb == Verb::kEvents) ok = FillEvents(all_events_, &options_.events);
      if (ok && options_.verb == Verb::kPs) ok = FillPs(options_.ps, options_.json);
      if (ok && options_.verb == Verb::kAgent) ok = FillAgent();
      if (!ok) return UsageError(ok.error().message);
    }
    outcome.options = options_;
    return outcome;
  }

  CLI::App app_;
  CLI::App* run_ = nullptr;
  ContainerCommands containers_;
  RawShare raw_create_;
  CLI::App* ps_ = nullptr;
  CLI::App* gpus_ = nullptr;
  CLI::App* update_ = nullptr;
  CLI::App* events_ = nullptr;
  CLI::App* top_ = nullptr;
  CLI::App* debug_ = nullptr;
  CLI::App* simulate_ = nullptr;
  CLI::App* agent_ = nullptr;
  RawShare raw_run_;
  RawTerms raw_update_;
  std::string raw_update_users_;
  std::vector<std::string> raw_overcommit_;
  std::vector<std::string> raw_elastic_ceilings_;
  std::vector<std::string> raw_resource_configs_;
  std::optional<std::string> raw_metrics_;
  bool all_events_ = false;
  Options options_;
};

}  // namespace

ParseOutcome ParseCommandLine(const std::vector<std::string>& arguments) {
  if (arguments == std::vector<std::string>{"version"}) return Parser::Version();
  std::vector<std::string> asked = arguments;
  if (!asked.empty() && asked.front() == "help") {
    asked.erase(asked.begin());
    if (asked.empty() || asked.front() == "help") return Parser().Parse({"--help"});
    // `run` takes what follows its options for a program.
    if (asked.front() == "run") asked.resize(1);
    asked.emplace_back("--help");
  }
  // Of what is no command there is no help, but an error.
  if (!asked.empty() && !asked.front().starts_with('-') && !Parser().Knows(asked.front())) {
    asked.resize(1);
  }
  return Parser().Parse(asked);
}

}  // namespace prorata::cli
