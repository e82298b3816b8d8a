#pragma once

// The role that holds pods which KAI places on parts of GPUs to their parts: a plugin of the
// container runtime.

#include <CLI/CLI.hpp>
#include <functional>

namespace prorata::apps {

// As AddWebhook.
void AddNri(CLI::App& app, std::function<int()>* run);

}  // namespace prorata::apps
