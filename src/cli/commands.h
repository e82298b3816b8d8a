#pragma once

#include "cli/agent_start.h"
#include "cli/options/options.h"

namespace prorata::cli {

// The commands that talk to an agent. Each prints its result on stdout or one line on stderr, and
// answers the exit status. Run() returns only when the program could not be started.
int Run(const RunOptions& options, const AgentPlace& place);
int ShowShares(bool json, const AgentPlace& place);
int ShowWaiting(bool json, const AgentPlace& place);
int Update(const UpdateOptions& options, const AgentPlace& place);
int ShowDevices(bool json, const AgentPlace& place);
int ShowEvents(const EventsOptions& options, bool json, const AgentPlace& place);  // events.cc
int ShowTop(const TopOptions& options, bool json, const AgentPlace& place);        // top.cc
int DebugTrace(const DebugTraceOptions& options, const AgentPlace& place);         // debug_trace.cc

// Asks the agent for a share, starting one where none answers, and waits in line for it where the
// options say so (start_wait.h). With a token it is kept until it is
// removed (api/control.h).
Result<api::ShareStatus> MakeShare(const ShareOptions& options, const AgentPlace& place,
                                   const std::optional<std::string>& token);

// "prorata: MESSAGE\n" on stderr, whatever lines the message has.
void Complain(const std::string& message);

}  // namespace prorata::cli
