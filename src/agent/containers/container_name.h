#pragma once

// What a person calls a container, by what its engine says of it. Pure; "": it does not say.

#include <optional>
#include <string>
#include <string_view>

namespace prorata::agent {

// The command line (/proc/PID/cmdline) of podman's conmon, if it is that of this container.
std::string NameOfMonitor(std::string_view command_line, std::string_view id);

// The command line of a containerd-shim-…: what it was given of the task that it runs (in
// Kubernetes the pod's). Nothing: it is of another program.
struct ShimTask {
  std::string name_space;
  std::string id;
};
std::optional<ShimTask> TaskOfShim(std::string_view command_line);

// Docker's config.v2.json.
std::string NameOfDockerConfig(std::string_view text);

// The config.json of the bundle of a container that Kubernetes made (by containerd or CRI-O):
// "NAMESPACE/POD/CONTAINER".
std::string NameOfOciConfig(std::string_view text);

}  // namespace prorata::agent
