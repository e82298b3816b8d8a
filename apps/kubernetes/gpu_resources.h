#pragma once

// The roles for clusters without DRA: the device plugin of a node, and the scheduler's extender.

#include <CLI/CLI.hpp>
#include <functional>

namespace prorata::kubernetes {

// Each adds its sub-command, and returns what runs it: until SIGTERM or SIGINT; the exit status.
std::function<int()> AddDevicePlugin(CLI::App* app);
std::function<int()> AddExtender(CLI::App* app);

}  // namespace prorata::kubernetes
