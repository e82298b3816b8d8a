#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/control_connection.h"
#include "protocol/control.h"

namespace prorata::cli {

// The agent's operations over a connection. Errors are the agent's own (code and message as it gave
// them), those of ControlConnection::Call, or "agent_reply".
Result<protocol::ShareStatus> CreateShare(ControlConnection* connection,
                                          const protocol::ShareSpec& spec);
Result<protocol::ShareStatus> UpdateShare(ControlConnection* connection, const std::string& name,
                                          const protocol::ShareChange& change);
struct Inspected {
  protocol::ShareStatus share;
  nlohmann::json cdi;  // null: container engines do not know it
};
Result<Inspected> InspectShare(ControlConnection* connection, const std::string& name);
// Answers the share while it still has programs.
Result<std::optional<protocol::ShareStatus>> RemoveShare(ControlConnection* connection,
                                                         const std::string& name);
// `line`: those that wait to be made, in their order; null: not asked for.
Result<std::vector<protocol::ShareStatus>> ListShares(
    ControlConnection* connection, std::vector<protocol::WaitingShare>* line = nullptr);
Result<std::vector<protocol::DeviceStatus>> ListDevices(ControlConnection* connection);
Result<protocol::TraceReply> GetTrace(ControlConnection* connection,
                                      const protocol::TraceRequest& trace);

}  // namespace prorata::cli
