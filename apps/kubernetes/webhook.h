#pragma once

// The role `webhook`: answers the API server about pods (src/kubernetes/admission).

#include <CLI/CLI.hpp>
#include <functional>

namespace prorata::apps {

// Adds the sub-command; `run` is set to what is to be done where it was given. The answer is the
// program's exit status.
void AddWebhook(CLI::App& app, std::function<int()>* run);

}  // namespace prorata::apps
