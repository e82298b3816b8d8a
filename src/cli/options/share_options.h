#pragma once

// The options of a new share, which `run` and `create` have in common.

#include <string>

#include "base/result.h"
#include "cli/options/options.h"
#include "cli/options/terms_options.h"

namespace CLI {
class App;
}

namespace prorata::cli {

// As typed.
struct RawShare {
  RawTerms terms;
  std::string gpu;
  std::string gpus;
  std::string allow_users;
  std::string wait;
};

void AddShareOptions(CLI::App* app, RawShare* raw, ShareOptions* share);

// Reads what was typed. The error is what follows "prorata: ".
Status FillShare(const CLI::App& app, const RawShare& raw, ShareOptions* share);

}  // namespace prorata::cli
