#pragma once

// The program that `run` becomes, as it was typed.

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/options/options.h"
#include "cli/options/share_options.h"

namespace prorata::cli {

// `run --wait 1s`: the value of an option that may have none stands behind a '='.
Status CheckWait(const CLI::App& run, const RawShare& raw);

// The program and its arguments: what CLI11 left over, then what stood after the first "--". When
// the command began before a "--", that "--" is the program's own.
Status FillCommand(const std::vector<std::string>& left_over, bool separated,
                   const std::vector<std::string>& after, RunOptions* run);

}  // namespace prorata::cli
