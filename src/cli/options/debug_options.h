#pragma once

#include "cli/options/options.h"

namespace CLI {
class App;
}

namespace prorata::cli {

// Adds `debug` to the commands; parsing it fills `options`.
CLI::App* AddDebug(CLI::App* app, Options* options);

}  // namespace prorata::cli
