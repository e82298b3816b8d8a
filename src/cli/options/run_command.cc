#include "cli/options/run_command.h"

#include <CLI/CLI.hpp>

#include "base/duration.h"

namespace prorata::cli {
namespace {

// What people know from Docker and `run` does without.
std::string Hint(const std::string& option) {
  if (option == "-d" || option == "--detach") {
    return "prorata becomes the program; `&` at the end of the line puts it into the background";
  }
  if (option == "-i" || option == "-t" || option == "-it" || option == "-ti") {
    return "leave it out: the program has this terminal";
  }
  if (option == "-e" || option == "--env") {
    return "the program has the environment of this shell: write `env NAME=VALUE prorata run ...`";
  }
  if (option == "--rm") return "leave it out: the share ends with its program";
  return "`prorata run --help` lists them";
}

}  // namespace

Status CheckWait(const CLI::App& run, const RawShare& raw) {
  const auto left_over = run.remaining();
  const bool alone = run.count("--wait") > 0 && raw.wait == "true";
  if (!alone || left_over.empty() || !ParseDuration(left_over.front())) return {};
  return Fail("usage",
              "run: '" + left_over.front() +
                  "' would be the program; a span of time is written --wait=" + left_over.front());
}

Status FillCommand(const std::vector<std::string>& left_over, bool separated,
                   const std::vector<std::string>& after, RunOptions* run) {
  if (!left_over.empty() && left_over.front().starts_with("-")) {
    const std::string& option = left_over.front();
    return Fail("usage", "run: unknown option '" + option + "'; " + Hint(option));
  }
  run->command = left_over;
  if (separated && !left_over.empty()) run->command.emplace_back("--");
  run->command.insert(run->command.end(), after.begin(), after.end());
  if (run->command.empty() || run->command.front().empty()) {
    return Fail("usage",
                "run: no command to run; write for example `prorata run -- python train.py`");
  }
  return {};
}

}  // namespace prorata::cli
