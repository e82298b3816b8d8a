#include "api/agent_api.h"

#include <nlohmann/json.hpp>

namespace prorata::cli {
namespace {

using api::ControlOp;
using api::ControlRequest;
using nlohmann::json;

Result<json> Ask(ControlConnection* connection, const ControlRequest& request) {
  auto reply = connection->Call(api::EncodeRequest(request));
  if (!reply) return std::unexpected(reply.error());
  if (auto error = api::ErrorOfReply(*reply)) return std::unexpected(*error);
  return reply;
}

// Of the answer to `request` what is in `field`.
template <typename Message>
Result<Message> AskFor(ControlConnection* connection, const ControlRequest& request,
                       const char* field, Result<Message> (*from_json)(const json&)) {
  auto reply = Ask(connection, request);
  if (!reply) return std::unexpected(reply.error());
  if (reply->contains(field)) return from_json((*reply)[field]);
  return LacksField(field);
}

}  // namespace

std::unexpected<Error> LacksField(const char* field) {
  return Fail("agent_reply", std::string("the agent's reply has no '") + field +
                                 "'; are agent and prorata of the same version?");
}

Result<api::ShareStatus> CreateShare(ControlConnection* connection, const api::ShareSpec& spec) {
  return AskFor(connection, {.op = ControlOp::kCreateShare, .share = spec}, "share",
                api::ShareFromJson);
}

Result<api::ShareStatus> UpdateShare(ControlConnection* connection, const std::string& name,
                                     const api::ShareChange& change) {
  return AskFor(connection, {.op = ControlOp::kUpdateShare, .name = name, .change = change},
                "share", api::ShareFromJson);
}

Result<Inspected> InspectShare(ControlConnection* connection, const std::string& name) {
  auto reply = Ask(connection, {.op = ControlOp::kInspectShare, .name = name});
  if (!reply) return std::unexpected(reply.error());
  auto share = api::ShareFromJson(reply->value("share", json()));
  if (!share) return std::unexpected(share.error());
  return Inspected{std::move(*share), reply->value("cdi", json())};
}

Result<std::optional<api::ShareStatus>> RemoveShare(ControlConnection* connection,
                                                    const std::string& name) {
  auto reply = Ask(connection, {.op = ControlOp::kRemoveShare, .name = name});
  if (!reply) return std::unexpected(reply.error());
  if (!reply->contains("share")) return std::nullopt;
  return api::ShareFromJson((*reply)["share"]);
}

Result<std::vector<api::ShareStatus>> ListShares(ControlConnection* connection,
                                                 std::vector<api::WaitingShare>* line) {
  auto reply = Ask(connection, {.op = ControlOp::kListShares});
  if (!reply) return std::unexpected(reply.error());
  // Absent of an agent that knows no line.
  if (line != nullptr && reply->contains("waiting")) {
    auto waiting = ListIn(*reply, "waiting", api::WaitingShareFromJson);
    if (!waiting) return std::unexpected(waiting.error());
    *line = std::move(*waiting);
  }
  return ListIn(*reply, "shares", api::ShareFromJson);
}

Result<std::vector<api::DeviceStatus>> ListDevices(ControlConnection* connection) {
  auto reply = Ask(connection, {.op = ControlOp::kListDevices});
  if (!reply) return std::unexpected(reply.error());
  return ListIn(*reply, "devices", api::DeviceFromJson);
}

Result<api::TraceReply> GetTrace(ControlConnection* connection, const api::TraceRequest& trace) {
  return AskFor(connection, {.op = ControlOp::kTrace, .trace = trace}, "trace", api::TraceFromJson);
}

}  // namespace prorata::cli
