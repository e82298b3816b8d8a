#include "agent/control_server.h"

#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "protocol/control.h"

namespace prorata::agent {
namespace {

using nlohmann::json;

constexpr size_t kMostSessions = 128;
constexpr size_t kMostUnsent = 8 << 20;
// A follower with more than this unsent gets no more events before it has read.
constexpr size_t kMostUnsentEvents = 64 << 10;
constexpr auto kEventsAgainAfter = std::chrono::milliseconds(50);

bool Changes(protocol::ControlOp op) {
  return op == protocol::ControlOp::kCreateShare || op == protocol::ControlOp::kRemoveShare ||
         op == protocol::ControlOp::kUpdateShare || op == protocol::ControlOp::kShutdown;
}

}  // namespace

ControlServer::ControlServer(boost::asio::io_context& loop, Node& node, std::string program_version,
                             std::function<void()> on_shutdown)
    : loop_(loop),
      node_(node),
      program_version_(std::move(program_version)),
      on_shutdown_(std::move(on_shutdown)),
      events_timer_(loop) {
  node_.on_event = [this] { SendEventsSoon(); };
}

ControlServer::~ControlServer() {
  node_.on_event = nullptr;
  while (!sessions_.empty()) {
    const auto connection = sessions_.begin()->second.connection;
    connection->Close();  // forgets the session
  }
}

Status ControlServer::Start(const std::string& socket_path) {
  auto socket = Listen(socket_path, ::geteuid() == 0 ? 0666 : 0600);
  if (!socket) return std::unexpected(socket.error());
  acceptor_ = std::make_unique<Acceptor>(loop_, std::move(*socket),
                                         [this](UniqueFd fd) { Accept(std::move(fd)); });
  return {};
}

void ControlServer::Accept(UniqueFd socket) {
  auto peer = IdentifyPeer(socket.get());
  const uint64_t id = next_id_++;
  Session& session = sessions_[id];
  session.connection = std::make_shared<Connection>(loop_, std::move(socket),
                                                    protocol::kMaxControlBodyBytes, kMostUnsent);
  const auto connection = session.connection;
  connection->Start(
      {.on_frame = [this, id](const protocol::FrameHeader& header, const uint8_t* body,
                              auto&) { OnFrame(id, header, body); },
       .on_malformed =
           [this, id] {
             Reply(sessions_.at(id),
                   protocol::ToJson(Error{"malformed",
                                          "malformed request: not a frame of at most "
                                          "1 MiB"}));
           },
       .on_closed = [this, id] { sessions_.erase(id); }});
  if (!peer || sessions_.size() > kMostSessions) {
    Reply(session, protocol::ToJson(peer ? Error{"too_many_connections",
                                                 "the agent has too many connections; try again"}
                                         : peer.error()));
    connection->Close();
    return;
  }
  session.peer = *peer;
}

void ControlServer::OnFrame(uint64_t session_id, const protocol::FrameHeader& header,
                            const uint8_t* body) {
  Session& session = sessions_.at(session_id);
  if (header.type != static_cast<uint16_t>(protocol::MessageType::kControlJson) ||
      header.version < protocol::kWireVersion) {
    Reply(session, protocol::ToJson(Error{"malformed", "malformed request: not a control frame"}));
    const auto connection = session.connection;
    connection->Close();
    return;
  }
  if (session.follows) {
    Reply(session, protocol::ToJson(Error{"malformed",
                                          "malformed request: this connection follows "
                                          "events and answers nothing else"}));
    const auto connection = session.connection;
    connection->Close();
    return;
  }
  Reply(session, Answer(session, {reinterpret_cast<const char*>(body), size_t{header.body_bytes}}));
}

json ControlServer::AnswerEvents(Session& session, const protocol::EventsRequest& request) {
  const Events& events = node_.events();
  const uint64_t last = events.last_sequence();
  auto batch =
      events.After(request.since.value_or(last), protocol::kMostEventsInReply, request.share);
  if (request.follow) {
    session.follows = true;
    session.after = batch.next;
    session.share = request.share;
    if (batch.next < last) SendEventsSoon();
  }
  return protocol::ToJson(
      protocol::EventsReply{std::move(batch.events), batch.lost, batch.next, last});
}

void ControlServer::SendEventsSoon() {
  if (events_armed_) return;
  events_armed_ = true;
  boost::asio::post(loop_, [this] {
    events_armed_ = false;
    bool all = true;
    for (auto& [id, session] : sessions_) all &= SendEvents(session);
    if (all) return;
    events_timer_.expires_after(kEventsAgainAfter);
    events_timer_.async_wait([this](const boost::system::error_code& stopped) {
      if (!stopped) SendEventsSoon();
    });
  });
}

bool ControlServer::SendEvents(Session& session) {
  if (!session.follows || session.connection->closed()) return true;
  const Events& events = node_.events();
  while (session.after < events.last_sequence()) {
    if (session.connection->unsent_bytes() > kMostUnsentEvents) return false;
    auto batch = events.After(session.after, protocol::kMostEventsInReply, session.share);
    session.after = batch.next;
    if (batch.events.empty() && batch.lost == 0) continue;
    Reply(session, protocol::ToJson(protocol::EventsReply{std::move(batch.events), batch.lost,
                                                          batch.next, events.last_sequence()}));
  }
  return true;
}

json ControlServer::Answer(Session& session, std::string_view text) {
  const Peer& peer = session.peer;
  auto request = protocol::DecodeRequest(text);
  if (!request) return protocol::ToJson(request.error());
  if (Changes(request->op) && peer.uid != 0 && peer.uid != ::geteuid()) {
    return protocol::ToJson(
        Error{"not_allowed", "this agent makes and ends shares only for root and for user " +
                                 std::to_string(::geteuid()) + "; you are user " +
                                 std::to_string(peer.uid)});
  }
  switch (request->op) {
    case protocol::ControlOp::kHello:
      return protocol::ToJson(protocol::HelloReply{protocol::kControlVersion, program_version_,
                                                   ::getpid(), ::geteuid()});
    case protocol::ControlOp::kCreateShare: {
      auto share = node_.Create(request->share, peer);
      if (!share) return protocol::ToJson(share.error());
      return {{"share", protocol::ToJson(node_.Describe(**share))}};
    }
    case protocol::ControlOp::kUpdateShare: {
      auto share = node_.Update(request->name, request->change);
      if (!share) return protocol::ToJson(share.error());
      return {{"share", protocol::ToJson(node_.Describe(**share))}};
    }
    case protocol::ControlOp::kListShares: {
      json shares = json::array();
      for (const auto& status : node_.DescribeShares()) shares.push_back(protocol::ToJson(status));
      return {{"shares", std::move(shares)}};
    }
    case protocol::ControlOp::kListDevices: {
      json devices = json::array();
      for (const auto& status : node_.DescribeDevices()) {
        devices.push_back(protocol::ToJson(status));
      }
      return {{"devices", std::move(devices)}};
    }
    case protocol::ControlOp::kRemoveShare:
      if (auto ok = node_.Remove(request->name); !ok) return protocol::ToJson(ok.error());
      return json::object();
    case protocol::ControlOp::kEvents:
      return AnswerEvents(session, request->events);
    case protocol::ControlOp::kShutdown:
      boost::asio::post(loop_, on_shutdown_);
      return json::object();
  }
  return protocol::ToJson(Error{"malformed", "malformed request"});
}

void ControlServer::Reply(Session& session, const json& reply) {
  std::string text = reply.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > protocol::kMaxControlBodyBytes) {
    text = protocol::ToJson(Error{"too_long", "the answer is longer than 1 MiB"}).dump();
  }
  session.connection->SendFrame(protocol::MessageType::kControlJson, text.data(), text.size());
}

}  // namespace prorata::agent
