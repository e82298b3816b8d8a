#include "kubernetes/dra/agent_client.h"

#include <poll.h>

#include <algorithm>
#include <climits>
#include <nlohmann/json.hpp>
#include <optional>

#include "api/control_connection.h"
#include "api/start_wait.h"

namespace prorata::kubernetes {
namespace {

using api::ControlOp;
using api::ControlRequest;
using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

int MsUntil(Agent::Deadline deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
}

// A request and the reply that has `field`; what comes before it says where in line a share is.
Result<json> Ask(const std::string& socket_path, const ControlRequest& request,
                 Agent::Deadline deadline, const char* field) {
  auto connection = cli::ControlConnection::Connect(socket_path);
  if (!connection) return std::unexpected(connection.error());
  if (auto ok = connection->Send(api::EncodeRequest(request)); !ok) {
    return std::unexpected(ok.error());
  }
  std::string waits_for;
  for (;;) {
    auto next = connection->TakeNext();
    if (!next) return std::unexpected(next.error());
    if (!*next) {
      pollfd agent = {connection->fd(), POLLIN, 0};
      const int ms = MsUntil(deadline);
      if (ms == 0 || ::poll(&agent, 1, ms) == 0) {
        return Fail("agent_slow", "the agent at '" + socket_path + "' did not answer in time" +
                                      (waits_for.empty() ? "" : "; it said: " + waits_for));
      }
      continue;
    }
    const json& reply = **next;
    if (auto error = api::ErrorOfReply(reply)) return std::unexpected(*error);
    if (reply.contains("waiting") && !reply.contains("shares")) {
      const auto waiting = api::WaitingShareFromJson(reply["waiting"]);
      if (waiting) waits_for = waiting->why;
      continue;
    }
    if (field != nullptr && !reply.contains(field)) {
      return Fail("agent_reply", std::string("the agent's reply has no '") + field +
                                     "'; are agent and prorata-kubernetes of the same version?");
    }
    return reply;
  }
}

}  // namespace

Result<NodeState> AgentClient::List(Deadline deadline) {
  ControlRequest request;
  request.op = ControlOp::kListDevices;
  const auto devices = Ask(socket_path_, request, deadline, "devices");
  if (!devices) return std::unexpected(devices.error());
  request.op = ControlOp::kListShares;
  const auto shares = Ask(socket_path_, request, deadline, "shares");
  if (!shares) return std::unexpected(shares.error());
  NodeState state;
  for (const json& entry : (*devices)["devices"]) {
    auto device = api::DeviceFromJson(entry);
    if (!device) return std::unexpected(device.error());
    state.devices.push_back(std::move(*device));
  }
  for (const json& entry : (*shares)["shares"]) {
    auto share = api::ShareFromJson(entry);
    if (!share) return std::unexpected(share.error());
    state.shares.push_back(std::move(*share));
  }
  return state;
}

Result<api::ShareStatus> AgentClient::Create(const api::ShareSpec& spec, Deadline deadline) {
  ControlRequest request;
  request.op = ControlOp::kCreateShare;
  request.share = spec;
  request.wait.emplace();
  request.wait->within_ms = static_cast<uint64_t>(std::max(1, MsUntil(deadline)));
  const auto reply = Ask(socket_path_, request, deadline + late_answer_, "share");
  if (!reply) return std::unexpected(reply.error());
  return api::ShareFromJson((*reply)["share"]);
}

Result<api::ShareStatus> AgentClient::Update(const std::string& name,
                                             const api::ShareChange& change, Deadline deadline) {
  ControlRequest request;
  request.op = ControlOp::kUpdateShare;
  request.name = name;
  request.change = change;
  const auto reply = Ask(socket_path_, request, deadline, "share");
  if (!reply) return std::unexpected(reply.error());
  return api::ShareFromJson((*reply)["share"]);
}

Status AgentClient::Remove(const std::string& name, Deadline deadline) {
  ControlRequest request;
  request.op = ControlOp::kRemoveShare;
  request.name = name;
  const auto reply = Ask(socket_path_, request, deadline, nullptr);
  if (!reply && reply.error().code != "no_share") return std::unexpected(reply.error());
  return {};
}

}  // namespace prorata::kubernetes
