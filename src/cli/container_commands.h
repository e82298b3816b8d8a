#pragma once

#include <optional>
#include <string>

#include "api/control.h"
#include "base/result.h"
#include "cli/agent_start.h"
#include "cli/options/options.h"

namespace prorata::cli {

// create, inspect, rm, cdi; as commands.h says.
int Create(const ShareOptions& options, const AgentPlace& place);
int Inspect(const NamedOptions& options, bool json, const AgentPlace& place);
int Remove(const NamedOptions& options, const AgentPlace& place);
int Cdi(const NamedOptions& options, const AgentPlace& place);

// A CDI specification's mounts and variables as arguments of `ctr run`, or of `podman run` and
// `docker run` (--volume), one a line. "cdi" if there is something that those cannot say.
enum class MountStyle { kCtr, kVolumes };
Result<std::string> MountArguments(const nlohmann::json& specification, MountStyle style);

// Everything about a share, for people.
std::string InspectText(const api::ShareStatus& share, bool is_device);

}  // namespace prorata::cli
