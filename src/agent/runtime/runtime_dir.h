#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace prorata::agent {

// Where an agent of this user lives, and is found: PRORATA_DIR if set; for root /run/prorata; for
// others $XDG_RUNTIME_DIR/prorata, or /tmp/prorata-UID. The control socket is `control` in it.
std::string RuntimeDir();

// Makes the agent's folder and its `shares` (mode 0755 for root's agent, else 0700), checks that
// both are ours and no links, and takes `lock`, which says that an agent lives here for as long as
// the answered descriptor is open. Errors: "runtime_dir", "agent_running".
Result<UniqueFd> TakeRuntimeDir(const std::string& path);

}  // namespace prorata::agent
