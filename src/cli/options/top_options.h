#pragma once

#include "cli/options/options.h"

namespace CLI {
class App;
}

namespace prorata::cli {

// Adds `top` to the commands; parsing it fills `options`.
CLI::App* AddTop(CLI::App* app, Options* options);

}  // namespace prorata::cli
