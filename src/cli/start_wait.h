#pragma once

// A share that waits in line until it fits (`--wait`, api/start_wait.h).

#include <optional>
#include <string>

#include "api/control.h"
#include "base/result.h"
#include "cli/agent_start.h"

namespace prorata::cli {

// As CreateShare, and waits. The place in line is reported on standard error: in place on a
// terminal, else a line each time it changes. SIGINT, SIGTERM and SIGHUP end this process at once,
// as they would any; nothing is made then. An agent that ends is waited for (a minute; then
// "agent_gone"), and the next one learns since when the share waits, by which it has its place
// again.
//
// `within_ms`: "timed_out" after that, with what it waited for and its place; absent: no end.
Result<api::ShareStatus> CreateShareInLine(const api::ShareSpec& spec, const AgentPlace& place,
                                           std::optional<uint64_t> within_ms);

// One line of a terminal that is `columns` wide, for a share that waits.
std::string WaitingLine(const api::WaitingShare& waiting, size_t columns);

}  // namespace prorata::cli
