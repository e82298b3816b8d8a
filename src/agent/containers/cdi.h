#pragma once

// Container Device Interface specifications, version 0.5.0, which podman 4.3 reads, too. Pure.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace prorata::agent {

// A share is the device "prorata.dev/share=NAME".
inline constexpr char kCdiKind[] = "prorata.dev/share";

// Where a container finds its share and the driver's own files, whatever its environment.
inline constexpr char kShareInContainer[] = "/run/prorata/share";
inline constexpr char kDriverInContainer[] = "/run/prorata/driver";

struct CdiMount {
  std::string host_path;
  std::string container_path;
  bool writable = false;
};

struct CdiHook {
  std::string name;  // createContainer, …
  std::string path;
  std::vector<std::string> arguments;  // from argv[0] on
};

struct CdiEdits {
  std::vector<std::string> environment;  // NAME=value; not for what a later process must have
  std::vector<std::string> device_nodes;
  std::vector<CdiMount> mounts;
  std::vector<CdiHook> hooks;
};

// What CDI allows as a device's name: letters, digits, '_', '-', '.' and ':', a letter or digit at
// both ends. "bad_name".
Status ValidateCdiName(std::string_view name);

// The file of a share's specification: engines read files that end in .json.
std::string CdiFileName(std::string_view share);

nlohmann::json CdiSpecification(std::string_view share, const CdiEdits& edits);

}  // namespace prorata::agent
