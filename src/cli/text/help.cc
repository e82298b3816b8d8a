#include "cli/text/help.h"

#include <algorithm>
#include <charconv>

namespace prorata::cli {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kTextFrom = 30;  // the column where descriptions begin

// `text` in lines that end before kColumns, each from kTextFrom on.
std::string Wrapped(const std::string& text) {
  constexpr size_t kWidth = kColumns - kTextFrom;
  std::string lines;
  for (size_t from = 0; from < text.size();) {
    size_t end = text.size();
    if (end - from > kWidth) {
      const size_t space = text.rfind(' ', from + kWidth);
      end = space == std::string::npos || space <= from ? from + kWidth : space;
    }
    lines +=
        (lines.empty() ? "" : std::string(kTextFrom, ' ')) + text.substr(from, end - from) + "\n";
    from = end < text.size() && text[end] == ' ' ? end + 1 : end;
  }
  return lines.empty() ? "\n" : lines;
}

std::string Entry(const std::string& name, const std::string& text) {
  std::string line = "  " + name;
  if (line.size() + 2 > kTextFrom) {
    line += "\n" + std::string(kTextFrom, ' ');
  } else {
    line.resize(kTextFrom, ' ');
  }
  return line + Wrapped(text);
}

// "debug trace": the command that was typed, less prorata; "": none.
std::string CommandOf(const CLI::App& app, const CLI::App** last) {
  std::string path;
  *last = &app;
  while (!(*last)->get_subcommands().empty()) {
    *last = (*last)->get_subcommands().front();
    path += (path.empty() ? "" : " ") + (*last)->get_name();
  }
  return path;
}

// "--gpu" of "--gpu=1".
std::string NameOfOption(const std::string& word) { return word.substr(0, word.find('=')); }

// An option by which a share is made.
bool IsOfNewShares(const CLI::App& app, const std::string& option) {
  return app.get_subcommand("run")->get_option_no_throw(option) != nullptr ||
         app.get_subcommand("create")->get_option_no_throw(option) != nullptr;
}

// "--memory" of "--memory: 1 required TEXT missing".
std::string OptionIn(const std::string& text) {
  const size_t from = text.find("--");
  if (from == std::string::npos) return "";
  return text.substr(from, text.find_first_of(": ", from) - from);
}

}  // namespace

const char* const kMainHelp =
    "prorata shares NVIDIA GPUs. Programs and containers run on shares: each share has so much "
    "GPU\n"
    "memory and so much GPU time, whatever the others do.\n\n"
    "Usage: prorata COMMAND [OPTIONS]\n\n"
    "Run a program on a share:\n"
    "  run       Run a program, on a share that is made for it\n"
    "  create    Make a share for containers, or for programs that come later\n\n"
    "Limit what it gets (options of run, create and update):\n"
    "  -m, --memory SIZE           the most GPU memory that it may hold: 512M, 4G, 25%\n"
    "  --compute FRACTION          the GPU time that it is guaranteed: 0.3 or 30%\n"
    "  --compute-limit FRACTION    the most GPU time that it may take\n\n"
    "Watch:\n"
    "  ps        List the shares: memory, GPU time, processes\n"
    "  top       The same live, and why a share is slow\n"
    "  gpus      List the GPUs: memory in use, and what is promised to shares\n"
    "  inspect   Show everything about one share\n"
    "  events    Print what happens: programs that come and go, refused allocations\n\n"
    "Change a share while its programs run:\n"
    "  update    Give it other limits\n\n"
    "End a share:\n"
    "  rm        End shares; a share of `run` ends with its program\n\n"
    "More:\n"
    "  cdi       Print how a container gets a share, for container engines\n"
    "  debug     Write a trace of what the GPUs did\n"
    "  simulate  Try placement policies on a cluster of your own\n"
    "  agent     Run the daemon that keeps the shares (`run` and `create` start one)\n"
    "  help      Print the help of a command\n"
    "  version   Print the version\n\n"
    "Examples:\n"
    "  prorata run -m 4G --compute 0.3 -- python train.py\n"
    "  prorata create train -m 8G --compute 0.5\n"
    "  podman run --device prorata.dev/share=train IMAGE python train.py\n"
    "  prorata ps\n"
    "  prorata update train -m 6G\n"
    "  prorata rm train\n\n"
    "Words:\n"
    "  request   what a share is guaranteed: memory, or a part of a GPU's time\n"
    "  limit     the most that it may have\n"
    "  promised  what the requests of a GPU's shares add up to\n"
    "  entitled  the GPU time that a share is due now, among the shares that want some\n\n"
    "Environment:\n"
    "  PRORATA_DIR         the agent's folder, by which all commands find it (default: root's is\n"
    "                      /run/prorata); a GPU has one agent\n"
    "  PRORATA_DRIVER_DIR  the folder of the driver to use; the simulated GPU's is build/sim\n"
    "                      of prorata's sources, as a path from /\n\n"
    "`prorata COMMAND --help`, or `prorata help COMMAND`, says more of each.\n";

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  if (app->get_parent() == nullptr) return kMainHelp;
  std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
  // A group of options that are not shown leaves its empty line.
  if (const size_t gap = help.find("\n\n\n"); gap != std::string::npos) help.erase(gap, 1);
  return help;
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string usage = "Usage: " + name + " [OPTIONS]";
  if (app->get_name() == "run") return usage + " -- PROGRAM [ARGUMENTS...]\n";
  if (!app->get_subcommands({}).empty()) usage += " COMMAND";
  for (const CLI::Option* option : app->get_options()) {
    if (!option->get_positional()) continue;
    const std::string& text = option->get_option_text();
    usage += option->get_required() ? " " + text : " [" + text + "]";
  }
  return usage + "\n";
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string name = option->get_option_text();
  if (!is_positional) {
    // "-m,--memory SIZE" as people write it, and "--wait[=DURATION]" as it is typed.
    std::string names = option->get_name(false, true);
    if (const size_t comma = names.find(','); comma != std::string::npos)
      names.insert(comma + 1, " ");
    name = names + (name.empty() || name.starts_with("[=") ? "" : " ") + name;
  }
  return Entry(name, option->get_description());
}

std::string HelpFormatter::make_subcommand(const CLI::App* sub) const {
  return Entry(sub->get_name(), sub->get_description());
}

CLI::Validator OneOf(const std::vector<std::string>& names) {
  std::string all;
  for (size_t i = 0; i < names.size(); ++i) {
    all += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  return CLI::Validator(
      [names, all](const std::string& text) {
        if (std::ranges::find(names, text) != names.end()) return std::string();
        return "'" + text + "' is not " + all;
      },
      "");
}

CLI::Validator WholeFrom(int64_t min, int64_t max) {
  return CLI::Validator(
      [min, max](const std::string& text) {
        int64_t value = 0;
        const char* const end = text.data() + text.size();
        const auto [at, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc{} && at == end && value >= min && value <= max) return std::string();
        return "'" + text + "' is not a whole number " +
               (max == INT64_MAX ? "from " + std::to_string(min) + " on"
                                 : "from " + std::to_string(min) + " to " + std::to_string(max));
      },
      "");
}

std::string UsageErrorText(const CLI::App& app, const CLI::ParseError& error,
                           const std::vector<std::string>& words) {
  const CLI::App* typed = nullptr;
  const std::string command = CommandOf(app, &typed);
  const std::string prefix = command.empty() ? "" : command + ": ";
  const std::string see = "; see `prorata " + (command.empty() ? "" : command + " ") + "--help`";
  const std::string text = error.what();
  const std::string option = OptionIn(text);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    if (!command.empty()) {
      return prefix + (command == "create"
                           ? "the name of the new share is missing; write for "
                             "example `prorata create train -m 4G`"
                           : "the name of the share is missing; write for example "
                             "`prorata " +
                                 command + (command == "update" ? " train -m 4G" : " train") +
                                 "`; `prorata ps` lists the shares");
    }
    std::string known;
    for (const CLI::App* sub : app.get_subcommands({})) {
      if (sub->get_group().empty()) continue;
      known += (known.empty() ? "" : ", ") + sub->get_name();
    }
    return (words.empty() ? "no command" : "'" + words.front() + "' is not a command") +
           "; they are " + known + see;
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const auto extras = app.remaining(true);
    const std::string extra = extras.empty() ? "" : extras.front();
    const bool dash = extra.starts_with('-');
    if (command == "update" && dash && IsOfNewShares(app, NameOfOption(extra))) {
      return prefix + NameOfOption(extra) +
             " can be given only when a share is made, by `run` or `create`" + see;
    }
    if (!dash && !typed->get_subcommands({}).empty()) {
      return prefix + "'" + extra + "' is not a command of " + command + see;
    }
    return prefix +
           (dash ? "unknown option '" + NameOfOption(extra) : "one word too many: '" + extra) +
           "'" + see;
  }
  const CLI::Option* its = option.empty() ? nullptr : typed->get_option_no_throw(option);
  if (const size_t end = text.find(" was given a disallowed flag override"); end != text.npos) {
    return prefix + (end == 1 ? "-" : "--") + text.substr(0, end) + " takes no value" + see;
  }
  if (text.find("At Most 1") != std::string::npos && option.empty()) {
    return prefix + "it takes one share, and more are named; name one" + see;
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && !option.empty()) {
    if (text.find("missing") != std::string::npos) {
      const std::string what = its == nullptr ? std::string() : " " + its->get_option_text();
      return prefix + option + " needs a value:" + what + see;
    }
    if (text.find("override") == std::string::npos) {
      return prefix + option + " is given twice; give it once" + see;
    }
  }
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr && its != nullptr &&
      its->get_expected_max() > 0) {
    return prefix + option + ": that is not a number" + see;
  }
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr ||
      text.find("override") != std::string::npos) {
    return prefix + option + " takes no value" + see;
  }
  std::string line = text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  return prefix + line + see;
}

}  // namespace prorata::cli
