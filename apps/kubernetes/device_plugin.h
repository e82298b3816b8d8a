#pragma once

// The role of a node's device plugin, for clusters without DRA.

#include <CLI/CLI.hpp>
#include <functional>

#include "kubernetes/pods/pod_request.h"

namespace prorata::apps {

// As AddWebhook: adds its sub-command, and sets `run` to what is to be done where it was given.
void AddDevicePlugin(CLI::App& app, std::function<int()>* run);
// The options that name the resources.
void AddResourceNames(CLI::App* role, kubernetes::ResourceNames* names);

}  // namespace prorata::apps
