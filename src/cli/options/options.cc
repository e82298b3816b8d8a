#include "cli/options/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "api/control.h"
#include "base/bytes.h"
#include "cli/options/container_options.h"
#include "cli/options/debug_options.h"
#include "cli/options/share_options.h"
#include "cli/options/simulate_options.h"
#include "cli/options/terms_options.h"
#include "cli/options/top_options.h"
#include "cli/options/users.h"
#include "cli/text/version.h"

namespace prorata::cli {
namespace {

constexpr const char* kMainFooter =
    "Examples:\n"
    "  prorata run --memory 4GiB --compute 0.3 -- python train.py\n"
    "  prorata create train --memory 4GiB        then: podman run --device "
    "prorata.dev/share=train\n"
    "  prorata ps\n"
    "  prorata gpus --json\n\n"
    "`prorata COMMAND --help` says more of each.";

constexpr const char* kRunFooter =
    "Examples:\n"
    "  prorata run -- python train.py                 all free memory, GPU time when it is there\n"
    "  prorata run --memory 4GiB --compute 0.3 -- python train.py\n"
    "  prorata run --gpu 1 --compute-limit 50% --name nightly -- ./job --epochs 3\n"
    "  prorata run --memory 4GiB --on-full wait=5m -- ./job       waits where the GPU is full\n"
    "  prorata run --memory-request 4GiB --memory 50% -- ./job    4 GiB set aside, and while the\n"
    "                                                  GPU has it, up to half of its memory\n"
    "  prorata run --memory 4GiB --wait=1h -- ./job               waits in line for its share\n"
    "  prorata run --gpus 2 --memory 4GiB -- ./job                two GPUs, 4 GiB of each\n"
    "  prorata run --gpu 0,2 --memory 4GiB,2=6GiB -- ./job        4 GiB of each, of GPU 2 6 GiB\n\n"
    "With several GPUs, what --memory, --compute, --compute-limit and --weight say holds for each\n"
    "of them; GPU=VALUE, separated by commas, says otherwise of one that --gpu names. The program\n"
    "sees them in the order of --gpu as GPU 0, 1 and so on. Kernels that wait for each other "
    "across\n"
    "GPUs (collectives) need them all at the same time: --gang.\n\n"
    "Once its share is made, prorata becomes the program: signals, terminal and exit status are "
    "the\n"
    "program's own. Before that: 127, no such command; 126, it cannot be executed; 2, wrong\n"
    "options; 1, the share was refused. The share ends with the program and its members.\n"
    "If no agent answers, one is started for you; it ends after its last share.";

constexpr const char* kPsFooter =
    "Examples:\n"
    "  prorata ps\n"
    "  prorata ps --json | jq '.[].name'\n"
    "  prorata ps --waiting            who waits in line for a share, and for what\n\n"
    "MEMORY is used / limit, and in brackets the part that no allocation asked for (contexts);\n"
    "`request` is what is set aside, where that is not all of the limit.\n"
    "COMPUTE is request-limit, the priority if it is not 0, and `gang` for a share that runs on "
    "all\n"
    "its GPUs at the same time. CONTAINER is there where one has a share; 1 OUTSIDE: a program of "
    "it "
    "uses the GPU\npast the share (`prorata inspect` says which). GPU TIME is the part of "
    "the device's time that the share had in\n"
    "the last seconds, and what it is entitled to among those who want time now.";

constexpr const char* kGpusFooter =
    "Examples:\n"
    "  prorata gpus\n"
    "  prorata gpus --json | jq '.[0].uuid'\n\n"
    "PROMISED is the memory that is set aside for shares (their requests), and in brackets what\n"
    "their limits add up to, if that is more. BORROWED is what they hold beyond their requests.";

constexpr const char* kAgentFooter =
    "Examples:\n"
    "  prorata agent                      in the foreground, until SIGTERM or SIGINT\n"
    "  prorata agent --log-level debug\n"
    "  prorata agent --overcommit 1.5     on every GPU; 0=1.5 or UUID=1.5 on one\n"
    "  prorata agent --resource-config GPU-8a6c...=/etc/gemini/resource-config.txt\n"
    "  prorata agent --metrics 9400       metrics at http://127.0.0.1:9400/metrics\n"
    "  PRORATA_DIR=/tmp/mine prorata agent   apart from any other agent";

constexpr const char* kUpdateFooter =
    "Examples:\n"
    "  prorata update nightly --memory 6GiB\n"
    "  prorata update nightly --memory-request 2GiB --memory 50%\n"
    "  prorata update nightly --compute 0.5 --compute-limit 0.8 --weight 200\n"
    "  prorata update nightly --memory 2=6GiB     of its GPU 2 only; 4GiB,2=6GiB: of each, but "
    "2\n"
    "  prorata update nightly --allow-users alice,1001\n\n"
    "What is not named stays; a memory request that was the whole limit stays the whole limit.\n"
    "Running programs go on with it at once. Below what they hold, the memory limit gives nothing\n"
    "new until use has fallen; nothing is taken from them.";

constexpr const char* kEventsFooter =
    "Examples:\n"
    "  prorata events                        from now on, until Ctrl-C\n"
    "  prorata events --all --no-follow      the last thousand or so, and no more\n"
    "  prorata events --json --share nightly | jq -r 'select(.event == \"refusal\") | .pid'\n\n"
    "One line an event: time, share, what happened. With --json one object an event; its fields\n"
    "are in docs/reference/events.md. Sequences begin with 1 when an agent starts. Exit status: 0, "
    "all was\n"
    "told or Ctrl-C; 1, it was refused; 3, the agent ended.";

ParseOutcome UsageError(const std::string& message) {
  ParseOutcome outcome;
  outcome.err = "prorata: " + message + "\n";
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

// The program and its arguments: what CLI11 left over, then what stood after the first "--". When
// the command began before a "--", that "--" is the program's own.
Status FillCommand(const std::vector<std::string>& left_over, bool separated,
                   const std::vector<std::string>& after, RunOptions* run) {
  if (!left_over.empty() && left_over.front().starts_with("-")) {
    return Fail("usage",
                "run: unknown option '" + left_over.front() + "'; `prorata run --help` lists them");
  }
  run->command = left_over;
  if (separated && !left_over.empty()) run->command.emplace_back("--");
  run->command.insert(run->command.end(), after.begin(), after.end());
  if (run->command.empty() || run->command.front().empty()) {
    return Fail("usage", "run: no command; write for example `prorata run -- python train.py`");
  }
  return {};
}

// The usage line of `run`: CLI11 does not know of the command that follows.
class RunFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: prorata run [OPTIONS] -- COMMAND [ARGUMENTS...]\n";
  }
};

class Parser {
 public:
  Parser() : app_("Shares NVIDIA GPUs: so much memory, so much GPU time, kept.", "prorata") {
    app_.require_subcommand(1);
    app_.set_version_flag("--version", std::string("prorata ") + kVersion, "Print the version");
    app_.footer(kMainFooter);
    app_.get_formatter()->label("SUBCOMMAND", "COMMAND");
    app_.get_formatter()->label("Subcommands", "Commands");
    AddRun();
    containers_ = AddContainerCommands(&app_, &raw_create_, &options_);
    AddOthers();
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
      return Text(std::string("prorata ") + kVersion + "\n");
    } catch (const CLI::RequiredError&) {
      const std::string seen =
          arguments.empty() ? "no command" : "'" + arguments.front() + "' is not a command";
      return UsageError(seen +
                        "; they are run, create, ps, inspect, gpus, update, rm, cdi, events, "
                        "top, debug, simulate and agent; see "
                        "`prorata --help`");
    } catch (const CLI::ParseError& error) {
      return UsageError(OneLine(error.what()) + "; see `prorata --help`");
    }
    return Finish(separated, after);
  }

 private:
  static ParseOutcome Text(std::string text) {
    ParseOutcome outcome;
    outcome.out = std::move(text);
    return outcome;
  }

  static std::string OneLine(std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }

  void AddRun() {
    run_ = app_.add_subcommand("run", "Run a program on a share of a GPU");
    run_->formatter(std::make_shared<RunFormatter>());
    run_->prefix_command();
    run_->add_option("--name", options_.run.name, "Name of the share (default: made up)")
        ->option_text("NAME");
    AddShareOptions(run_, &raw_run_, &options_.run);
    run_->footer(kRunFooter);
  }

  void AddOthers() {
    update_ = app_.add_subcommand("update", "Change a share while its programs run");
    update_->add_option("name", options_.update.name, "The share")->required()->option_text("NAME");
    AddTermsOptions(update_, &raw_update_, {});
    update_
        ->add_option("--allow-users", raw_update_users_,
                     "Other users whose programs may join the share from now on, in place of those "
                     "of before: names, ids, `all` or `none`; who runs on it stays")
        ->option_text("all|none|USER[,USER...]");
    update_->footer(kUpdateFooter);
    ps_ = app_.add_subcommand("ps", "Show the shares: members, memory and GPU time now");
    ps_->add_flag("--json", options_.json, "Print JSON");
    ps_->add_flag("--waiting", options_.waiting, "Only the shares that wait in line to be made");
    ps_->footer(kPsFooter);
    gpus_ = app_.add_subcommand("gpus", "Show the GPUs: capacity, and what of it is promised");
    gpus_->add_flag("--json", options_.json, "Print JSON");
    gpus_->footer(kGpusFooter);
    events_ = app_.add_subcommand("events", "Tell what happens: members, refusals, waits and more");
    events_->add_flag("--json", options_.json, "Print one JSON object a line");
    events_->add_option("--since", options_.events.since, "First those after this sequence")
        ->option_text("N")
        ->check(CLI::NonNegativeNumber);
    events_->add_flag("--all", all_events_, "First all those that the agent still has");
    events_->add_option("--share", options_.events.share, "Of this share only")
        ->option_text("NAME");
    events_->add_flag("!--no-follow", options_.events.follow,
                      "End with the last there is (and with neither --since nor --all, of all)");
    events_->footer(kEventsFooter);
    top_ = AddTop(&app_, &options_);
    debug_ = AddDebug(&app_, &options_);
    simulate_ = AddSimulate(&app_, &options_);
    agent_ = app_.add_subcommand("agent", "Run the agent in the foreground");
    agent_
        ->add_option("--log-level", options_.agent.log_level,
                     "trace, debug, info, warn or error (default: info)")
        ->option_text("LEVEL")
        ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
    agent_->add_flag("--exit-when-idle", options_.agent.exit_when_idle,
                     "End after the last share has ended");
    agent_
        ->add_option("--overcommit", raw_overcommit_,
                     "Promise up to RATIO times the memory that shares may hold, of one GPU or of "
                     "all; may be given again (default: 1)")
        ->option_text("[GPU=]RATIO");
    agent_
        ->add_option(
            "--elastic-ceiling", raw_elastic_ceilings_,
            "Above their requests, let shares use up to FRACTION of a GPU's time together, "
            "of one GPU or of all; may be given again (default: 1)")
        ->option_text("[GPU=]FRACTION")
        ->allow_extra_args(false);
    agent_
        ->add_option("--resource-config", raw_resource_configs_,
                     "A GPU's clients as Gemini's resource-config.txt has them, each a share that "
                     "programs join by `prorata run --name ID`; the file is watched; may be given "
                     "again for another GPU (default: none)")
        ->option_text("GPU=FILE")
        ->allow_extra_args(false);
    agent_
        ->add_option("--metrics", raw_metrics_,
                     "Offer metrics for Prometheus at http://ADDRESS:PORT/metrics, to whoever can "
                     "connect; a PORT alone is on 127.0.0.1, port 0 a free one that the log tells "
                     "(default: none)")
        ->option_text("[ADDRESS:]PORT");
    agent_
        ->add_option("--cdi-dir", options_.agent.cdi_dir,
                     "Where container engines look for devices (default: /var/run/cdi; for an "
                     "agent that is not root's, cdi in its own folder)")
        ->option_text("FOLDER");
    agent_->add_option("--ready-fd", options_.agent.ready_fd)->group("");
    // For tests on a simulated GPU; of no use to a person, so not in the help.
    agent_->add_option("--dilation", options_.agent.dilation)
        ->group("")
        ->check(CLI::Range(1, 10000));
    agent_->add_option("--slow-disk-ms", options_.agent.slow_disk_ms)->group("");
    agent_->footer(kAgentFooter);
  }

  ParseOutcome Finish(bool separated, const std::vector<std::string>& after) {
    ParseOutcome outcome;
    if (run_->parsed()) {
      options_.verb = Verb::kRun;
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
      if (!ok) return UsageError(ok.error().message);
      for (const std::string& text : raw_overcommit_) {
        auto overcommit = agent::ParseOvercommit(text);
        if (!overcommit) return UsageError("--overcommit: " + overcommit.error().message);
        options_.agent.overcommit.push_back(*overcommit);
      }
      for (const std::string& text : raw_elastic_ceilings_) {
        auto ceiling = agent::ParseElasticCeiling(text);
        if (!ceiling) return UsageError("--elastic-ceiling: " + ceiling.error().message);
        options_.agent.elastic_ceilings.push_back(*ceiling);
      }
      for (const std::string& text : raw_resource_configs_) {
        auto file = agent::ParseResourceConfigFile(text);
        if (!file) return UsageError("--resource-config: " + file.error().message);
        options_.agent.resource_configs.push_back(*file);
      }
      if (raw_metrics_) {
        auto metrics = agent::ParseMetricsAddress(*raw_metrics_);
        if (!metrics) return UsageError("--metrics: " + metrics.error().message);
        options_.agent.metrics = *metrics;
      }
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
  return Parser().Parse(arguments);
}

}  // namespace prorata::cli
