#pragma once

// The member sockets: who connects to a share's socket, what it may say, and the answers.
//
// A peer is what the kernel says it is, and of a user that the share admits. It has a few seconds
// to join, and of those of one user that have not joined the oldest go when there are too many
// (quiet_connections.h); what it sends must be frames of wire.h about devices of this share, or it
// is refused and its connection closed, which changes nothing for anybody else (nor for a member it
// was: that lives as long as its process).

#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>

#include "agent/node/node.h"
#include "agent/server/member_messages.h"
#include "agent/server/quiet_connections.h"

namespace prorata::agent {

class MemberServer {
 public:
  MemberServer(boost::asio::io_context& loop, Node& node);
  ~MemberServer();

  void Accept(uint64_t share_id, UniqueFd socket);

 private:
  struct Session;

  Share* ShareOf(const Session& session);
  Member* MemberOf(const Session& session);
  void OnFrame(Session& session, const wire::FrameHeader& header, const uint8_t* body,
               std::vector<UniqueFd>& fds);
  void OnJoin(Session& session, const wire::Join& join, std::vector<UniqueFd>& fds);
  void OnGrantRequest(Session& session, const wire::GrantRequest& request);
  void OnContextMade(Session& session, const wire::ContextMade& made);
  void OnUsageWanted(Session& session, const wire::UsageWanted& wanted);
  void Refuse(Session& session, wire::RefusedReason reason, uint32_t detail = 0);
  void Forget(uint64_t session_id);

  boost::asio::io_context& loop_;
  Node& node_;
  uint64_t next_id_ = 1;
  // Shared with the call that is going on: what it does may close its own connection, and with it
  // end its session.
  std::map<uint64_t, std::shared_ptr<Session>> sessions_;
  std::map<uint64_t, uint32_t> by_share_;  // connections
  QuietConnections quiet_;                 // those that have not joined
};

}  // namespace prorata::agent
