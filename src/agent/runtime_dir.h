#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace prorata::agent {

// Makes the agent's folder and its `shares` (mode 0755 for root's agent, else 0700), checks that
// both are ours and no links, and takes `lock`, which says that an agent lives here for as long as
// the answered descriptor is open. Errors: "runtime_dir", "agent_running".
Result<UniqueFd> TakeRuntimeDir(const std::string& path);

}  // namespace prorata::agent
