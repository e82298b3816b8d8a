#pragma once

// The commands for shares that are there before their programs: create, inspect, rm, cdi.

#include <optional>

#include "cli/options/options.h"
#include "cli/options/share_options.h"

namespace CLI {
class App;
}

namespace prorata::cli {

struct ContainerCommands {
  CLI::App* create = nullptr;
  CLI::App* remove = nullptr;
  CLI::App* inspect = nullptr;
  CLI::App* cdi = nullptr;
  CLI::App* hook = nullptr;  // what the specifications of shares make engines run

  // Which of them was typed.
  std::optional<Verb> Parsed() const;
};

ContainerCommands AddContainerCommands(CLI::App* app, RawShare* raw_create, Options* options);

// Reads what was typed after one of them. The error is what follows "prorata: ".
Status FillContainerCommand(const ContainerCommands& commands, const RawShare& raw_create,
                            Options* options);

}  // namespace prorata::cli
