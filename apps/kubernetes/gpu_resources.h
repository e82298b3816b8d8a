#pragma once

// The roles for clusters without DRA: the device plugin of a node, and the scheduler's extender.

#include <CLI/CLI.hpp>
#include <functional>

#include "kubernetes/pods/pod_request.h"

namespace prorata::apps {

// As AddWebhook: each adds its sub-command, and sets `run` to what is to be done where it was
// given.
void AddDevicePlugin(CLI::App& app, std::function<int()>* run);
void AddExtender(CLI::App& app, std::function<int()>* run);
// The options that name the resources.
void AddResourceNames(CLI::App* role, kubernetes::ResourceNames* names);

}  // namespace prorata::apps
