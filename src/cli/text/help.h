#pragma once

// What `--help` prints: of prorata itself a text that answers a newcomer's five questions in order
// (how to run, limit, watch, change and end a share), of each command its options.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace prorata::cli {

extern const char* const kMainHelp;

// The layout of a command's help: options with their descriptions broken into lines of at most 100
// columns, and nothing of the parser's own words.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* sub) const override;
};

// Checks with words of our own: one of these names; a whole number from `min` to `max`.
CLI::Validator OneOf(const std::vector<std::string>& names);
CLI::Validator WholeFrom(int64_t min, int64_t max);

// What is wrong with a command line that the parser refused, in one line: what follows "prorata: ".
// `words` are those of the command line.
std::string UsageErrorText(const CLI::App& app, const CLI::ParseError& error,
                           const std::vector<std::string>& words);

}  // namespace prorata::cli
