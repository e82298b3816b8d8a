#include "agent/server/control_server.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "agent/server/trace_answer.h"
#include "api/control.h"

namespace prorata::agent {
namespace {

using nlohmann::json;

constexpr size_t kMaxSessions = 1024;       // but for root and the agent's own user
constexpr size_t kMaxOfUser = 128;          // QuietConnections::kMaxOfUser, and who is answered
constexpr size_t kMaxFollowersOfUser = 32;  // the rest of those are for others than followers
constexpr auto kFirstRequestWithin = std::chrono::seconds(5);
constexpr size_t kMaxWaitingRequests = 16;  // of one connection
constexpr size_t kMaxUnsent = 8 << 20;
static_assert(wire::kMaxControlReplyBytes < kMaxUnsent);
// A follower with more than this unsent gets no more events before it has read.
constexpr size_t kMaxUnsentEvents = 64 << 10;
constexpr auto kEventsAgainAfter = std::chrono::milliseconds(50);

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
  closing_ = true;
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
                                                    wire::kMaxControlBodyBytes, kMaxUnsent);
  const auto connection = session.connection;
  connection->Start({.on_frame = [this, id](const wire::FrameHeader& header, const uint8_t* body,
                                            auto&) { OnFrame(id, header, body); },
                     .on_malformed =
                         [this, id] {
                           Send(sessions_.at(id),
                                api::ToJson(Error{"malformed",
                                                  "malformed request: not a frame of at most "
                                                  "1 MiB"}));
                         },
                     .on_closed =
                         [this, id] {
                           quiet_.Remove(id);
                           const uint64_t ticket = sessions_.at(id).ticket;
                           sessions_.erase(id);
                           if (ticket != 0 && !closing_) node_.starts().GiveUp(ticket);
                         }});
  if (!peer) return Refuse(session, peer.error().code.c_str(), peer.error().message);
  session.peer = *peer;
  if (auto ok = MayStay(session); !ok) {
    return Refuse(session, ok.error().code.c_str(), ok.error().message);
  }
  quiet_.Add(id, peer->uid, connection);
  AwaitRequest(id);
  connection->Read();
}

void ControlServer::AwaitRequest(uint64_t session_id) {
  Session& session = sessions_.at(session_id);
  session.speak_by = std::make_unique<boost::asio::steady_timer>(loop_, kFirstRequestWithin);
  session.speak_by->async_wait([this, session_id](const boost::system::error_code& stopped) {
    const auto found = stopped ? sessions_.end() : sessions_.find(session_id);
    if (found == sessions_.end() || found->second.speak_by == nullptr) return;
    Refuse(found->second, "timed_out",
           "no request came within " + std::to_string(kFirstRequestWithin.count()) +
               " s of connecting, so the agent closes the connection; connect again when there is "
               "something to ask");
  });
}

Status ControlServer::MayStay(const Session& session) const {
  const uid_t user = session.peer.uid;
  size_t own = 0;
  for (const auto& [id, other] : sessions_) own += other.peer.uid == user && &other != &session;
  // The quiet ones among them make room for this one.
  if (own >= kMaxOfUser) {
    return Fail("too_many_connections", "user " + std::to_string(user) + " has " +
                                            std::to_string(own) +
                                            " connections to the agent, the most that one user "
                                            "may have; close some and try again");
  }
  if (sessions_.size() > kMaxSessions && user != 0 && user != ::geteuid()) {
    return Fail("too_many_connections", "the agent has " + std::to_string(sessions_.size()) +
                                            " connections, the most that it takes; try again");
  }
  return {};
}

Status ControlServer::MayFollow(const Session& session) const {
  size_t own = 0;
  for (const auto& [id, other] : sessions_) {
    own += other.follows && other.peer.uid == session.peer.uid;
  }
  if (own < kMaxFollowersOfUser) return {};
  return Fail("too_many_connections",
              "user " + std::to_string(session.peer.uid) + " follows events on " +
                  std::to_string(own) +
                  " connections, the most that one user may have; end one of them (`prorata "
                  "events`, `prorata top`) and try again");
}

void ControlServer::OnFrame(uint64_t session_id, const wire::FrameHeader& header,
                            const uint8_t* body) {
  Session& session = sessions_.at(session_id);
  if (header.type != static_cast<uint16_t>(wire::MessageType::kControlJson) ||
      header.version < wire::kWireVersion) {
    return Refuse(session, "malformed", "malformed request: not a control frame");
  }
  const std::string_view text(reinterpret_cast<const char*>(body), header.body_bytes);
  if (!session.answering) return Take(session_id, text);
  if (session.requests.size() >= kMaxWaitingRequests) {
    return Refuse(session, "malformed",
                  "malformed request: too many before the first was answered");
  }
  session.requests.emplace_back(text);
}

void ControlServer::Refuse(Session& session, const char* code, const std::string& why) {
  Send(session, api::ToJson(Error{code, why}));
  const auto connection = session.connection;
  connection->Close();
}

void ControlServer::Take(uint64_t session_id, std::string_view text) {
  Session& session = sessions_.at(session_id);
  if (session.follows) {
    return Refuse(session, "malformed",
                  "malformed request: this connection follows events and answers nothing else");
  }
  session.answering = true;
  session.speak_by = nullptr;
  quiet_.Remove(session_id);
  Answer(session, text, [this, session_id](const json& reply) { Replied(session_id, reply); });
}

void ControlServer::Replied(uint64_t session_id, const json& reply) {
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  Send(session, reply);
  if (session.requests.empty()) {
    session.answering = false;
    if (!session.follows) quiet_.Add(session_id, session.peer.uid, session.connection);
    return;
  }
  boost::asio::post(loop_, [this, session_id] {
    const auto again = sessions_.find(session_id);
    if (again == sessions_.end() || again->second.requests.empty()) return;
    const std::string next = std::move(again->second.requests.front());
    again->second.requests.pop_front();
    Take(session_id, next);
  });
}

bool ControlServer::SeesAll(const Peer& peer) const {
  return peer.uid == 0 || peer.uid == ::geteuid();
}

Status ControlServer::MayAsk(const Peer& peer, const api::ControlRequest& request) {
  using enum api::ControlOp;
  const bool makes = request.op == kCreateShare;
  const bool changes = request.op == kUpdateShare || request.op == kRemoveShare;
  if (SeesAll(peer) || (!makes && !changes && request.op != kShutdown)) return {};
  const std::string you = "you are user " + std::to_string(peer.uid);
  const std::string name = makes ? request.share.name.value_or("") : request.name;
  const Share* share = node_.FindByName(name);
  const bool joins = makes && share != nullptr && share->config().life.OutlivesPrograms();
  if (joins && share->Admits(peer.uid)) return {};
  if (changes && share != nullptr && peer.uid == share->config().owner_uid) return {};
  if (share == nullptr || (makes && !joins)) {
    return Fail("not_allowed",
                "this agent makes, changes and ends shares only for root" +
                    (::geteuid() == 0 ? "" : " and for user " + std::to_string(::geteuid())) +
                    "; " + you + ": ask for a share that you may use");
  }
  return Fail("not_allowed",
              "share '" + name + "' belongs to user " + std::to_string(share->config().owner_uid) +
                  "; " + you + ", who may not " +
                  (!makes ? "change or end it: ask its owner, or root"
                   : share->config().life.file() != nullptr
                       ? "use it: ask its owner to write users=" + std::to_string(peer.uid) +
                             " into its line in '" + *share->config().life.file() + "'"
                       : "use it: ask its owner for `prorata update " + name + " --allow-users " +
                             std::to_string(peer.uid) + "`"));
}

// Without the commands of programs on shares that are none of this user's; those of shares that are
// gone are nobody's.
std::vector<api::Event> ControlServer::Seen(const Session& session,
                                            std::vector<api::Event> events) {
  if (SeesAll(session.peer)) return events;
  for (api::Event& event : events) {
    const Share* share = node_.FindByName(event.share);
    if (share == nullptr || !share->Admits(session.peer.uid)) event.command.clear();
  }
  return events;
}

// Whether there is a share of this name, waits one to be made, or has an event that is still kept.
bool ControlServer::Knows(const std::string& share) {
  if (node_.FindByName(share) != nullptr) return true;
  if (!node_.events().After(0, 1, share).events.empty()) return true;
  return std::ranges::any_of(node_.starts().Describe(),
                             [&](const auto& waiting) { return waiting.name == share; });
}

json ControlServer::ReplyEvents(Session& session, const api::EventsRequest& request) {
  const Events& events = node_.events();
  if (!request.share.empty() && !Knows(request.share)) {
    return api::ToJson(Error{"no_share", "there is no share named '" + request.share +
                                             "', and no event of one; `prorata ps` lists "
                                             "them"});
  }
  const uint64_t last = events.last_sequence();
  auto batch = events.After(request.since.value_or(last), api::kMaxEventsInReply, request.share);
  if (request.follow) {
    session.follows = true;
    session.after = batch.next;
    session.share = request.share;
    if (batch.next < last) SendEventsSoon();
  }
  return api::ToJson(
      api::EventsReply{Seen(session, std::move(batch.events)), batch.lost, batch.next, last});
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
    if (session.connection->unsent_bytes() > kMaxUnsentEvents) return false;
    auto batch = events.After(session.after, api::kMaxEventsInReply, session.share);
    session.after = batch.next;
    if (batch.events.empty() && batch.lost == 0) continue;
    Send(session, api::ToJson(api::EventsReply{Seen(session, std::move(batch.events)), batch.lost,
                                               batch.next, events.last_sequence()}));
  }
  return true;
}

json ControlServer::SeenStatus(const Peer& peer, api::ShareStatus status) const {
  if (!SeesAll(peer) && peer.uid != status.owner_uid && !status.allow_users.Admits(peer.uid)) {
    for (api::MemberStatus& member : status.members) member.command.clear();
  }
  return api::ToJson(status);
}

json ControlServer::ReplyInspect(const Peer& peer, const std::string& name) {
  Share* share = node_.FindByName(name);
  if (share == nullptr) {
    return api::ToJson(
        Error{"no_share", "there is no share named '" + name + "'; `prorata ps` lists them"});
  }
  json answer = {{"share", SeenStatus(peer, node_.descriptions().OfShare(*share))}};
  if (const json* specification = node_.specifications().Find(name)) answer["cdi"] = *specification;
  return answer;
}

Starts::OnShare ControlServer::OnShare(Reply reply) {
  return [this, reply = std::move(reply)](Result<Share*> share) {
    if (!share) return reply(api::ToJson(share.error()));
    reply({{"share", api::ToJson(node_.descriptions().OfShare(**share))}});
  };
}

void ControlServer::Create(Session& session, const api::ControlRequest& request, Reply reply) {
  if (!request.wait) {
    node_.starts().Create(request.share, session.peer, OnShare(std::move(reply)));
    return;
  }
  const std::weak_ptr<Connection> its = session.connection;
  session.ticket =
      node_.starts().Create(request.share, session.peer, OnShare(std::move(reply)), request.wait,
                            [its](const api::WaitingShare& waiting) {
                              const auto connection = its.lock();
                              if (connection == nullptr) return;
                              SendJson(*connection, {{"waiting", api::ToJson(waiting)}});
                            });
}

void ControlServer::Answer(Session& session, std::string_view text, const Reply& reply) {
  const Peer& peer = session.peer;
  auto request = api::DecodeRequest(text);
  if (!request) return reply(api::ToJson(request.error()));
  if (auto ok = MayAsk(peer, *request); !ok) return reply(api::ToJson(ok.error()));
  switch (request->op) {
    case api::ControlOp::kHello:
      return reply(api::ToJson(
          api::HelloReply{api::kControlVersion, program_version_, ::getpid(), ::geteuid()}));
    case api::ControlOp::kCreateShare:
      return Create(session, *request, reply);
    case api::ControlOp::kUpdateShare:
      return node_.changes().Update(request->name, request->change, OnShare(reply));
    case api::ControlOp::kListShares: {
      json shares = json::array();
      for (auto& status : node_.descriptions().OfShares()) {
        shares.push_back(SeenStatus(peer, std::move(status)));
      }
      json waiting = json::array();
      for (const auto& one : node_.starts().Describe()) waiting.push_back(api::ToJson(one));
      return reply({{"shares", std::move(shares)}, {"waiting", std::move(waiting)}});
    }
    case api::ControlOp::kListDevices:
      return node_.devices().Refresh([this, reply] {
        json devices = json::array();
        for (const auto& status : node_.descriptions().OfDevices()) {
          devices.push_back(api::ToJson(status));
        }
        reply({{"devices", std::move(devices)}});
      });
    case api::ControlOp::kRemoveShare: {
      if (auto ok = node_.lives().Remove(request->name); !ok) return reply(api::ToJson(ok.error()));
      Share* share = node_.FindByName(request->name);
      if (share == nullptr) return reply(json::object());
      return reply({{"share", api::ToJson(node_.descriptions().OfShare(*share))}});
    }
    case api::ControlOp::kInspectShare:
      return reply(ReplyInspect(peer, request->name));
    case api::ControlOp::kEvents:
      if (auto ok = request->events.follow ? MayFollow(session) : Status{}; !ok) {
        return reply(api::ToJson(ok.error()));
      }
      return reply(ReplyEvents(session, request->events));
    case api::ControlOp::kTrace: {
      const auto trace = ReplyTrace(node_, request->trace, [this, &peer](const Share* share) {
        return SeesAll(peer) || (share != nullptr && share->Admits(peer.uid));
      });
      if (!trace) return reply(api::ToJson(trace.error()));
      return reply({{"trace", api::ToJson(*trace)}});
    }
    case api::ControlOp::kShutdown:
      boost::asio::post(loop_, on_shutdown_);
      return reply(json::object());
  }
  reply(api::ToJson(Error{"malformed", "malformed request"}));
}

void ControlServer::Send(Session& session, const json& reply) {
  SendJson(*session.connection, reply);
}

void ControlServer::SendJson(Connection& connection, const json& reply) {
  std::string text = reply.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > wire::kMaxControlReplyBytes) {
    text = api::ToJson(Error{"too_long",
                             "the answer is longer than 6 MiB; ask about one share "
                             "(`prorata inspect NAME`)"})
               .dump();
  }
  connection.SendFrame(wire::MessageType::kControlJson, text.data(), text.size());
}

}  // namespace prorata::agent
