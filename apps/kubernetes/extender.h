#pragma once

// The role of the scheduler's extender: it places pods that ask by resources, or scores the nodes
// of pods with claims.

#include <CLI/CLI.hpp>
#include <functional>

namespace prorata::apps {

// As AddWebhook: adds its sub-command, and sets `run` to what is to be done where it was given.
void AddExtender(CLI::App& app, std::function<int()>* run);

}  // namespace prorata::apps
