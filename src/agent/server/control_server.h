#pragma once

// The control socket: making, listing and removing shares, as api/control.h says.
//
// Who may do what. Anybody who can connect may ask what there is, and is shown the commands
// of programs only on shares that it may use. Making shares and ending the agent are for the user
// the agent runs as, and for root; changing and removing a share are for its owner, too. A user
// whose machine has an agent of root uses the shares that it was allowed on, by name where a file
// asks for them. The socket of a user's own agent is 0600 in a folder of 0700, root's is 0666.
// Peers are as the kernel names them.
//
// Who keeps whom away. Nobody does by connections that say nothing: the first request is awaited
// for five seconds, and of each user's idle connections the oldest go (quiet_connections.h). One
// user may have so many connections and so many of them that follow events; above that, they are
// refused.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "agent/node/node.h"
#include "agent/runtime/connection.h"
#include "agent/server/quiet_connections.h"
#include "api/control.h"

namespace prorata::agent {

class ControlServer {
 public:
  ControlServer(boost::asio::io_context& loop, Node& node, std::string program_version,
                std::function<void()> on_shutdown);
  ~ControlServer();

  // "listen".
  Status Start(const std::string& socket_path);

 private:
  struct Session {
    Peer peer;
    std::shared_ptr<Connection> connection;
    std::unique_ptr<boost::asio::steady_timer> speak_by;  // until its first request
    bool follows = false;                                 // events are sent as they come
    uint64_t after = 0;                                   // the last that was sent
    std::string share = {};                               // of this share only; empty: of all
    // One request at a time: others of the connection wait for its reply.
    bool answering = false;
    uint64_t ticket = 0;  // of a share that it waits for (Starts::Create); 0: of none
    std::deque<std::string> requests = {};
  };
  using Reply = std::function<void(const nlohmann::json&)>;

  void Accept(UniqueFd socket);
  void OnFrame(uint64_t session_id, const wire::FrameHeader& header, const uint8_t* body);
  void Take(uint64_t session_id, std::string_view text);
  void Replied(uint64_t session_id, const nlohmann::json& reply);
  void Refuse(Session& session, const char* code, const std::string& why);
  void AwaitRequest(uint64_t session_id);
  // "too_many_connections": of this one's user, or of all.
  // "not_allowed": who owns what was asked about, and what to do.
  Status MayAsk(const Peer& peer, const api::ControlRequest& request);
  bool SeesAll(const Peer& peer) const;
  std::vector<api::Event> Seen(const Session& session, std::vector<api::Event> events);
  Status MayStay(const Session& session) const;
  Status MayFollow(const Session& session) const;
  Starts::OnShare OnShare(Reply reply);
  // `reply` is called once, now or later.
  void Answer(Session& session, std::string_view text, const Reply& reply);
  void Create(Session& session, const api::ControlRequest& request, Reply reply);
  // A share as this peer may see it: without commands of others' programs.
  nlohmann::json SeenStatus(const Peer& peer, api::ShareStatus status) const;
  nlohmann::json ReplyInspect(const Peer& peer, const std::string& name);
  bool Knows(const std::string& share);
  nlohmann::json ReplyEvents(Session& session, const api::EventsRequest& request);
  // Sends followers what they have not got; those that read slowly wait for the next time.
  void SendEventsSoon();
  bool SendEvents(Session& session);  // false: there is more
  static void SendJson(Connection& connection, const nlohmann::json& reply);
  void Send(Session& session, const nlohmann::json& reply);

  boost::asio::io_context& loop_;
  Node& node_;
  std::string program_version_;
  std::function<void()> on_shutdown_;
  std::unique_ptr<Acceptor> acceptor_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Session> sessions_;
  QuietConnections quiet_;
  boost::asio::steady_timer events_timer_;
  bool events_armed_ = false;
  bool closing_ = false;  // the agent ends: those that wait for a share are the next agent's
};

}  // namespace prorata::agent
