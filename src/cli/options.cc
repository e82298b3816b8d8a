#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "cli/version.h"
#include "protocol/control.h"

namespace prorata::cli {
namespace {

constexpr const char* kMainFooter =
    "Examples:\n"
    "  prorata run --memory 4GiB --compute 0.3 -- python train.py\n"
    "  prorata ps\n"
    "  prorata gpus --json\n\n"
    "`prorata COMMAND --help` says more of each.";

constexpr const char* kRunFooter =
    "Examples:\n"
    "  prorata run -- python train.py                 all free memory, GPU time when it is there\n"
    "  prorata run --memory 4GiB --compute 0.3 -- python train.py\n"
    "  prorata run --gpu 1 --compute-limit 50% --name nightly -- ./job --epochs 3\n\n"
    "Once its share is made, prorata becomes the program: signals, terminal and exit status are "
    "the\n"
    "program's own. Before that: 127, no such command; 126, it cannot be executed; 2, wrong\n"
    "options; 1, the share was refused. The share ends with the program and its members.\n"
    "If no agent answers, one is started for you; it ends after its last share.";

constexpr const char* kPsFooter =
    "Examples:\n"
    "  prorata ps\n"
    "  prorata ps --json | jq '.[].name'\n\n"
    "MEMORY is used / limit, and in brackets the part that no allocation asked for (contexts).\n"
    "COMPUTE is request-limit. GPU TIME is the part of the device's time that the share had in\n"
    "the last seconds, and what it is entitled to among those who want time now.";

constexpr const char* kGpusFooter =
    "Examples:\n"
    "  prorata gpus\n"
    "  prorata gpus --json | jq '.[0].uuid'";

constexpr const char* kAgentFooter =
    "Examples:\n"
    "  prorata agent                      in the foreground, until SIGTERM or SIGINT\n"
    "  prorata agent --log-level debug\n"
    "  PRORATA_DIR=/tmp/mine prorata agent   apart from any other agent";

constexpr const char* kUpdateFooter =
    "Examples:\n"
    "  prorata update nightly --memory 6GiB\n"
    "  prorata update nightly --compute 0.5 --compute-limit 0.8 --weight 200\n\n"
    "What is not named stays. Running programs go on with it at once. Below what they hold, the\n"
    "memory limit gives nothing new until use has fallen; nothing is taken from them.";

// The terms of a share, as typed.
struct RawTerms {
  std::string memory;
  std::string compute;
  std::string compute_limit;
  std::string weight;
};

ParseOutcome UsageError(const std::string& message) {
  ParseOutcome outcome;
  outcome.err = "prorata: " + message + "\n";
  outcome.status = kExitUsage;
  return outcome;
}

// Reads the texts of the options that say a share's terms; the error is what follows "prorata: ".
Status FillTerms(const CLI::App& app, const RawTerms& raw, protocol::ShareChange* terms) {
  if (app.count("--memory") > 0) {
    auto bytes = ParseBytes(raw.memory);
    if (!bytes) return Fail("usage", "--memory: " + bytes.error().message);
    terms->memory_bytes = *bytes;
  }
  for (const auto& [flag, text, target] :
       {std::tuple{"--compute", &raw.compute, &terms->compute_request},
        std::tuple{"--compute-limit", &raw.compute_limit, &terms->compute_limit}}) {
    if (app.count(flag) == 0) continue;
    auto fraction = ParseFraction(*text);
    if (!fraction) return Fail("usage", std::string(flag) + ": " + fraction.error().message);
    *target = *fraction;
  }
  if (terms->compute_limit == Fraction::Zero()) {
    return Fail("usage", "--compute-limit: a share that may take no GPU time at all cannot run");
  }
  if (app.count("--weight") > 0) {
    const bool digits = !raw.weight.empty() && raw.weight.size() <= 5 &&
                        std::all_of(raw.weight.begin(), raw.weight.end(),
                                    [](char c) { return c >= '0' && c <= '9'; });
    const uint32_t weight = digits ? static_cast<uint32_t>(std::stoul(raw.weight)) : 0;
    if (weight == 0 || weight > protocol::kMaxWeight) {
      return Fail("usage", "--weight: '" + raw.weight + "' is not a whole number from 1 to 10000");
    }
    terms->weight = weight;
  }
  if (terms->compute_request && terms->compute_limit &&
      *terms->compute_limit < *terms->compute_request) {
    return Fail("usage", "--compute-limit " + FormatFraction(*terms->compute_limit) +
                             " is below --compute " + FormatFraction(*terms->compute_request) +
                             "; raise the limit or lower the request");
  }
  return {};
}

Status FillRun(const CLI::App& app, const RawTerms& raw, RunOptions* run) {
  protocol::ShareChange terms;
  if (auto ok = FillTerms(app, raw, &terms); !ok) return ok;
  run->memory_bytes = terms.memory_bytes;
  run->compute_request = terms.compute_request.value_or(run->compute_request);
  run->compute_limit = terms.compute_limit.value_or(run->compute_limit);
  run->weight = terms.weight.value_or(run->weight);
  if (app.count("--gpu") > 0 && run->gpu.empty()) {
    return Fail("usage", "--gpu: an index or a UUID is missing; `prorata gpus` lists them");
  }
  if (app.count("--name") > 0) {
    if (auto ok = protocol::ValidateShareName(run->name); !ok) {
      return Fail("usage", "--name: " + ok.error().message);
    }
  }
  return {};
}

Status FillUpdate(const CLI::App& app, const RawTerms& raw, UpdateOptions* update) {
  if (auto ok = protocol::ValidateShareName(update->name); !ok) {
    return Fail("usage", "update: " + ok.error().message);
  }
  if (auto ok = FillTerms(app, raw, &update->change); !ok) return ok;
  if (update->change.Empty()) {
    return Fail("usage",
                "update: nothing to change; give --memory, --compute, --compute-limit or "
                "--weight");
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
      return UsageError(seen + "; they are run, ps, gpus, update and agent; see `prorata --help`");
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
    AddTerms(run_, &raw_run_, " (default: all that is free)", " (default: 0)", " (default: 1)",
             " (default: 100)");
    run_->add_option("--gpu", options_.run.gpu,
                     "Index or UUID, as `prorata gpus` shows them (default: the agent chooses)")
        ->option_text("INDEX|UUID");
    run_->add_option("--name", options_.run.name, "Name of the share (default: made up)")
        ->option_text("NAME");
    run_->footer(kRunFooter);
  }

  static void AddTerms(CLI::App* app, RawTerms* raw, const std::string& memory,
                       const std::string& compute, const std::string& limit,
                       const std::string& weight) {
    app->add_option("--memory", raw->memory,
                    "Device memory the share may hold, e.g. 512MiB or 4GiB" + memory)
        ->option_text("SIZE");
    app->add_option("--compute", raw->compute,
                    "Part of the GPU's time it gets whenever it wants it" + compute)
        ->option_text("FRACTION");
    app->add_option("--compute-limit", raw->compute_limit,
                    "The most of the GPU's time it may take" + limit)
        ->option_text("FRACTION");
    app->add_option("--weight", raw->weight,
                    "Its part of the time that no request claims, against others'" + weight)
        ->option_text("N");
  }

  void AddOthers() {
    update_ = app_.add_subcommand("update", "Change a share while its programs run");
    update_->add_option("name", options_.update.name, "The share")->required()->option_text("NAME");
    AddTerms(update_, &raw_update_, "", "", "", "");
    update_->footer(kUpdateFooter);
    ps_ = app_.add_subcommand("ps", "Show the shares: members, memory and GPU time now");
    ps_->add_flag("--json", options_.json, "Print JSON");
    ps_->footer(kPsFooter);
    gpus_ = app_.add_subcommand("gpus", "Show the GPUs: capacity, and what of it is promised");
    gpus_->add_flag("--json", options_.json, "Print JSON");
    gpus_->footer(kGpusFooter);
    agent_ = app_.add_subcommand("agent", "Run the agent in the foreground");
    agent_
        ->add_option("--log-level", options_.agent.log_level,
                     "trace, debug, info, warn or error (default: info)")
        ->option_text("LEVEL")
        ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
    agent_->add_flag("--exit-when-idle", options_.agent.exit_when_idle,
                     "End after the last share has ended");
    agent_->add_option("--ready-fd", options_.agent.ready_fd)->group("");
    // For tests on a simulated GPU; of no use to a person, so not in the help.
    agent_->add_option("--dilation", options_.agent.dilation)
        ->group("")
        ->check(CLI::Range(1, 10000));
    agent_->footer(kAgentFooter);
  }

  ParseOutcome Finish(bool separated, const std::vector<std::string>& after) {
    ParseOutcome outcome;
    if (run_->parsed()) {
      options_.verb = Verb::kRun;
      if (auto ok = FillCommand(run_->remaining(), separated, after, &options_.run); !ok) {
        return UsageError(ok.error().message);
      }
      if (auto ok = FillRun(*run_, raw_run_, &options_.run); !ok) {
        return UsageError(ok.error().message);
      }
    } else {
      if (separated) return UsageError("'--' and a command belong to `prorata run` only");
      options_.verb = ps_->parsed()       ? Verb::kPs
                      : gpus_->parsed()   ? Verb::kGpus
                      : update_->parsed() ? Verb::kUpdate
                                          : Verb::kAgent;
      if (options_.verb == Verb::kUpdate) {
        if (auto ok = FillUpdate(*update_, raw_update_, &options_.update); !ok) {
          return UsageError(ok.error().message);
        }
      }
    }
    outcome.options = options_;
    return outcome;
  }

  CLI::App app_;
  CLI::App* run_ = nullptr;
  CLI::App* ps_ = nullptr;
  CLI::App* gpus_ = nullptr;
  CLI::App* update_ = nullptr;
  CLI::App* agent_ = nullptr;
  RawTerms raw_run_;
  RawTerms raw_update_;
  Options options_;
};

}  // namespace

ParseOutcome ParseCommandLine(const std::vector<std::string>& arguments) {
  return Parser().Parse(arguments);
}

}  // namespace prorata::cli
