#include "cli/top/top_feed.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "api/agent_api.h"

namespace prorata::cli {
namespace {

using api::ControlOp;

std::string Question(ControlOp op) {
  api::ControlRequest request;
  request.op = op;
  return api::EncodeRequest(request);
}

template <typename Items>
Status TakeInto(Items* to, Result<Items> items) {
  if (!items) return std::unexpected(items.error());
  *to = std::move(*items);
  return {};
}

}  // namespace

Status TopFeed::Ask() {
  if (asked()) return {};
  if (!connection_) {
    auto connection = ControlConnection::Connect(socket_path_);
    if (!connection) return std::unexpected(connection.error());
    connection_ = std::move(*connection);
  }
  partial_ = {};
  for (const ControlOp op : {ControlOp::kListShares, ControlOp::kListDevices}) {
    if (auto ok = connection_->Send(Question(op)); !ok) {
      connection_.reset();
      return ok;
    }
  }
  answers_due_ = 2;
  return {};
}

Status TopFeed::Read(const nlohmann::json& reply) {
  if (auto error = api::ErrorOfReply(reply)) return std::unexpected(*error);
  if (answers_due_ == 0)
    return Fail("agent_reply",
                "the agent sent a reply to no request; are agent and prorata of the same version?");
  const bool shares = answers_due_ == 2;
  --answers_due_;
  if (shares) return TakeInto(&partial_.shares, ListIn(reply, "shares", api::ShareFromJson));
  return TakeInto(&partial_.devices, ListIn(reply, "devices", api::DeviceFromJson));
}

Result<std::optional<TopSnapshot>> TopFeed::TakeAll() {
  for (;;) {
    auto next = connection_->TakeNext();
    if (!next) return std::unexpected(next.error());
    if (!*next) return std::nullopt;
    if (auto ok = Read(**next); !ok) return std::unexpected(ok.error());
    if (answers_due_ == 0) return std::exchange(partial_, {});
  }
}

Result<std::optional<TopSnapshot>> TopFeed::Take() {
  if (!connection_) return std::nullopt;
  auto taken = TakeAll();
  if (!taken) {
    connection_.reset();
    answers_due_ = 0;
  }
  return taken;
}

}  // namespace prorata::cli
