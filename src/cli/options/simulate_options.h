#pragma once

#include "cli/options/options.h"

namespace CLI {
class App;
}

namespace prorata::cli {

// Adds `simulate` to the commands; parsing it fills `options`.
CLI::App* AddSimulate(CLI::App* app, Options* options);

}  // namespace prorata::cli
