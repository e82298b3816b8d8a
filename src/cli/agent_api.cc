#include "cli/agent_api.h"

#include <nlohmann/json.hpp>

namespace prorata::cli {
namespace {

using protocol::ControlOp;
using protocol::ControlRequest;

// The reply, which holds what was asked for in `field`.
Result<nlohmann::json> AskWhole(ControlConnection* connection, const ControlRequest& request,
                                const char* field) {
  auto reply = connection->Call(protocol::EncodeRequest(request));
  if (!reply) return std::unexpected(reply.error());
  if (auto error = protocol::ErrorOfReply(*reply)) return std::unexpected(*error);
  if (!reply->contains(field)) {
    return Fail("agent_reply", std::string("the agent's reply has no '") + field +
                                   "'; are agent and prorata of the same version?");
  }
  return reply;
}

Result<nlohmann::json> Ask(ControlConnection* connection, const ControlRequest& request,
                           const char* field) {
  auto reply = AskWhole(connection, request, field);
  if (!reply) return std::unexpected(reply.error());
  return (*reply)[field];
}

template <typename Item, typename FromJson>
Result<std::vector<Item>> ReadList(const nlohmann::json& list, FromJson from_json) {
  std::vector<Item> items;
  for (const nlohmann::json& entry : list) {
    auto item = from_json(entry);
    if (!item) return std::unexpected(item.error());
    items.push_back(std::move(*item));
  }
  return items;
}

}  // namespace

Result<protocol::ShareStatus> CreateShare(ControlConnection* connection,
                                          const protocol::ShareSpec& spec) {
  ControlRequest request;
  request.op = ControlOp::kCreateShare;
  request.share = spec;
  auto share = Ask(connection, request, "share");
  if (!share) return std::unexpected(share.error());
  return protocol::ShareFromJson(*share);
}

Result<protocol::ShareStatus> UpdateShare(ControlConnection* connection, const std::string& name,
                                          const protocol::ShareChange& change) {
  ControlRequest request;
  request.op = ControlOp::kUpdateShare;
  request.name = name;
  request.change = change;
  auto share = Ask(connection, request, "share");
  if (!share) return std::unexpected(share.error());
  return protocol::ShareFromJson(*share);
}

Result<Inspected> InspectShare(ControlConnection* connection, const std::string& name) {
  ControlRequest request;
  request.op = ControlOp::kInspectShare;
  request.name = name;
  auto reply = connection->Call(protocol::EncodeRequest(request));
  if (!reply) return std::unexpected(reply.error());
  if (auto error = protocol::ErrorOfReply(*reply)) return std::unexpected(*error);
  auto share = protocol::ShareFromJson(reply->value("share", nlohmann::json()));
  if (!share) return std::unexpected(share.error());
  return Inspected{std::move(*share), reply->value("cdi", nlohmann::json())};
}

Result<std::optional<protocol::ShareStatus>> RemoveShare(ControlConnection* connection,
                                                         const std::string& name) {
  ControlRequest request;
  request.op = ControlOp::kRemoveShare;
  request.name = name;
  auto reply = connection->Call(protocol::EncodeRequest(request));
  if (!reply) return std::unexpected(reply.error());
  if (auto error = protocol::ErrorOfReply(*reply)) return std::unexpected(*error);
  if (!reply->contains("share")) return std::nullopt;
  auto share = protocol::ShareFromJson((*reply)["share"]);
  if (!share) return std::unexpected(share.error());
  return std::move(*share);
}

Result<std::vector<protocol::ShareStatus>> ListShares(ControlConnection* connection,
                                                      std::vector<protocol::WaitingShare>* line) {
  ControlRequest request;
  request.op = ControlOp::kListShares;
  const auto reply = AskWhole(connection, request, "shares");
  if (!reply) return std::unexpected(reply.error());
  if (line != nullptr) {
    // Absent of an agent that knows no line.
    auto waiting = ReadList<protocol::WaitingShare>(
        reply->value("waiting", nlohmann::json::array()), protocol::WaitingShareFromJson);
    if (!waiting) return std::unexpected(waiting.error());
    *line = std::move(*waiting);
  }
  return ReadList<protocol::ShareStatus>((*reply)["shares"], protocol::ShareFromJson);
}

Result<std::vector<protocol::DeviceStatus>> ListDevices(ControlConnection* connection) {
  ControlRequest request;
  request.op = ControlOp::kListDevices;
  const auto list = Ask(connection, request, "devices");
  if (!list) return std::unexpected(list.error());
  return ReadList<protocol::DeviceStatus>(*list, protocol::DeviceFromJson);
}

Result<protocol::TraceReply> GetTrace(ControlConnection* connection,
                                      const protocol::TraceRequest& trace) {
  ControlRequest request;
  request.op = ControlOp::kTrace;
  request.trace = trace;
  auto reply = Ask(connection, request, "trace");
  if (!reply) return std::unexpected(reply.error());
  return protocol::TraceFromJson(*reply);
}

}  // namespace prorata::cli
