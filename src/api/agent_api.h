#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "api/control.h"
#include "api/control_connection.h"
#include "base/result.h"

namespace prorata::cli {

// "agent_reply": a reply without what was asked for.
std::unexpected<Error> LacksField(const char* field);

// What `reply` lists in `field`.
template <typename Item>
Result<std::vector<Item>> ListIn(const nlohmann::json& reply, const char* field,
                                 Result<Item> (*from_json)(const nlohmann::json&)) {
  if (!reply.contains(field)) return LacksField(field);
  std::vector<Item> items;
  for (const nlohmann::json& entry : reply[field]) {
    auto item = from_json(entry);
    if (!item) return std::unexpected(item.error());
    items.push_back(std::move(*item));
  }
  return items;
}

// The agent's operations over a connection. Errors are the agent's own (code and message as it gave
// them), those of ControlConnection::Call, or "agent_reply".
Result<api::ShareStatus> CreateShare(ControlConnection* connection, const api::ShareSpec& spec);
Result<api::ShareStatus> UpdateShare(ControlConnection* connection, const std::string& name,
                                     const api::ShareChange& change);
struct Inspected {
  api::ShareStatus share;
  nlohmann::json cdi;  // null: container engines do not know it
};
Result<Inspected> InspectShare(ControlConnection* connection, const std::string& name);
// Answers the share while it still has programs.
Result<std::optional<api::ShareStatus>> RemoveShare(ControlConnection* connection,
                                                    const std::string& name);
// `line`: those that wait to be made, in their order; null: not asked for.
Result<std::vector<api::ShareStatus>> ListShares(ControlConnection* connection,
                                                 std::vector<api::WaitingShare>* line = nullptr);
Result<std::vector<api::DeviceStatus>> ListDevices(ControlConnection* connection);
Result<api::TraceReply> GetTrace(ControlConnection* connection, const api::TraceRequest& trace);

}  // namespace prorata::cli
