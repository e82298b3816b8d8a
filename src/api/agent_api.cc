#include "api/agent_api.h"

#include <nlohmann/json.hpp>

namespace prorata::cli {
namespace {

using api::ControlOp;
using api::ControlRequest;

// The reply, which holds what was asked for in `field`.
Result<nlohmann::json> AskWhole(ControlConnection* connection, const ControlRequest& request,
                                const char* field) {
  auto reply = connection->Call(api::EncodeRequest(request));
  if (!reply) return std::unexpected(reply.error());
  if (auto error = api::ErrorOfReply(*reply)) return std::unexpected(*error);
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

Result<api::ShareStatus> CreateShare(ControlConnection* connection, const api::ShareSpec& spec) {
  ControlRequest request;
  request.op = ControlOp::kCreateShare;
  request.share = spec;
  auto share = Ask(connection, request, "share");
  if (!share) return std::unexpected(share.error());
  return api::ShareFromJson(*share);
}

Result<api::ShareStatus> UpdateShare(ControlConnection* connection, const std::string& name,
                                     const api::ShareChange& change) {
  ControlRequest request;
  request.op = ControlOp::kUpdateShare;
  request.name = name;
  request.change = change;
  auto share = Ask(connection, request, "share");
  if (!share) return std::unexpected(share.error());
  return api::ShareFromJson(*share);
}

Result<Inspected> InspectShare(ControlConnection* connection, const std::string& name) {
  ControlRequest request;
  request.op = ControlOp::kInspectShare;
  request.name = name;
  auto reply = connection->Call(api::EncodeRequest(request));
  if (!reply) return std::unexpected(reply.error());
  if (auto error = api::ErrorOfReply(*reply)) return std::unexpected(*error);
  auto share = api::ShareFromJson(reply->value("share", nlohmann::json()));
  if (!share) return std::unexpected(share.error());
  return Inspected{std::move(*share), reply->value("cdi", nlohmann::json())};
}

Result<std::optional<api::ShareStatus>> RemoveShare(ControlConnection* connection,
                                                    const std::string& name) {
  ControlRequest request;
  request.op = ControlOp::kRemoveShare;
  request.name = name;
  auto reply = connection->Call(api::EncodeRequest(request));
  if (!reply) return std::unexpected(reply.error());
  if (auto error = api::ErrorOfReply(*reply)) return std::unexpected(*error);
  if (!reply->contains("share")) return std::nullopt;
  auto share = api::ShareFromJson((*reply)["share"]);
  if (!share) return std::unexpected(share.error());
  return std::move(*share);
}

Result<std::vector<api::ShareStatus>> ListShares(ControlConnection* connection,
                                                 std::vector<api::WaitingShare>* line) {
  ControlRequest request;
  request.op = ControlOp::kListShares;
  const auto reply = AskWhole(connection, request, "shares");
  if (!reply) return std::unexpected(reply.error());
  if (line != nullptr) {
    // Absent of an agent that knows no line.
    auto waiting = ReadList<api::WaitingShare>(reply->value("waiting", nlohmann::json::array()),
                                               api::WaitingShareFromJson);
    if (!waiting) return std::unexpected(waiting.error());
    *line = std::move(*waiting);
  }
  return ReadList<api::ShareStatus>((*reply)["shares"], api::ShareFromJson);
}

Result<std::vector<api::DeviceStatus>> ListDevices(ControlConnection* connection) {
  ControlRequest request;
  request.op = ControlOp::kListDevices;
  const auto list = Ask(connection, request, "devices");
  if (!list) return std::unexpected(list.error());
  return ReadList<api::DeviceStatus>(*list, api::DeviceFromJson);
}

Result<api::TraceReply> GetTrace(ControlConnection* connection, const api::TraceRequest& trace) {
  ControlRequest request;
  request.op = ControlOp::kTrace;
  request.trace = trace;
  auto reply = Ask(connection, request, "trace");
  if (!reply) return std::unexpected(reply.error());
  return api::TraceFromJson(*reply);
}

}  // namespace prorata::cli
