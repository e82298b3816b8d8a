#include "agent/server/member_server.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>

#include "agent/share/share_events.h"

namespace prorata::agent {

using wire::MessageType;
using wire::RefusedReason;

namespace {

constexpr size_t kMaxMemberUnsent = 64 << 10;
// Per share: more than its members, all that may be quiet, and some that speak just now.
constexpr uint32_t kMaxConnections = kMaxMembers + QuietConnections::kMost + 64;
constexpr auto kJoinWithin = std::chrono::seconds(5);
constexpr int64_t kRefusedWindowNs = 10 * kNsPerS;
constexpr uint32_t kMaxShownAtOnce = 64;  // what a socket's buffer takes of small messages

}  // namespace

struct MemberServer::Session {
  Session(boost::asio::io_context& loop, uint64_t id_, uint64_t share_id_)
      : id(id_), share_id(share_id_), join_timer(loop) {}

  uint64_t id;
  uint64_t share_id;
  Peer peer;
  PeerWatch watch;  // until it joins
  std::shared_ptr<Connection> connection;
  boost::asio::steady_timer join_timer;
  bool joined = false;
  uint32_t slot = 0;
};

MemberServer::MemberServer(boost::asio::io_context& loop, Node& node) : loop_(loop), node_(node) {}

MemberServer::~MemberServer() {
  while (!sessions_.empty()) {
    const auto connection = sessions_.begin()->second->connection;
    connection->Close();  // forgets the session
  }
}

Share* MemberServer::ShareOf(const Session& session) { return node_.Find(session.share_id); }

// The member that this connection speaks for; null if it speaks for none (any more).
Member* MemberServer::MemberOf(const Session& session) {
  Share* share = session.joined ? ShareOf(session) : nullptr;
  Member* member = share != nullptr ? share->FindMember(session.slot) : nullptr;
  const bool own = member != nullptr && member->connection == session.connection;
  return own ? member : nullptr;
}

void MemberServer::Accept(uint64_t share_id, UniqueFd socket) {
  PeerWatch watch;
  const auto peer = IdentifyPeer(socket.get(), &watch);
  auto session = std::make_shared<Session>(loop_, next_id_++, share_id);
  Session& s = *session;
  s.watch = std::move(watch);
  s.connection = std::make_shared<Connection>(loop_, std::move(socket), wire::kMaxMemberBodyBytes,
                                              kMaxMemberUnsent);
  const uint64_t id = s.id;
  sessions_[id] = session;
  const uint32_t connections = ++by_share_[share_id];
  auto find = [this, id]() -> std::shared_ptr<Session> {
    const auto found = sessions_.find(id);
    return found == sessions_.end() ? nullptr : found->second;
  };
  s.connection->Start(
      {.on_frame =
           [this, find](const wire::FrameHeader& header, const uint8_t* body, auto& fds) {
             if (const auto own = find()) OnFrame(*own, header, body, fds);
           },
       .on_malformed =
           [this, find] {
             if (const auto own = find()) Refuse(*own, RefusedReason::kMalformed);
           },
       .on_closed = [this, id] { Forget(id); }});
  if (!peer) return Refuse(s, RefusedReason::kNotAllowed);
  s.peer = *peer;
  const Share* share = ShareOf(s);
  if (share == nullptr) return Refuse(s, RefusedReason::kShareEnded);
  if (!ShareContainers::MayUse(*share, *peer)) {
    return Refuse(s, RefusedReason::kOtherUser, share->config().owner_uid);
  }
  if (connections > kMaxConnections) return Refuse(s, RefusedReason::kTooManyMembers);
  quiet_.Add(id, peer->uid, s.connection);
  s.join_timer.expires_after(kJoinWithin);
  s.join_timer.async_wait([this, find](const boost::system::error_code& stopped) {
    if (const auto own = stopped ? nullptr : find()) Refuse(*own, RefusedReason::kMalformed);
  });
  s.connection->Read();
}

void MemberServer::Forget(uint64_t id) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const std::shared_ptr<Session> session = found->second;
  sessions_.erase(found);
  quiet_.Remove(id);
  session->join_timer.cancel();
  if (Member* member = MemberOf(*session)) ShareOf(*session)->Connect(*member, nullptr);
  if (--by_share_[session->share_id] == 0) by_share_.erase(session->share_id);
}

// Reported once and then counted: a process that tries again and again fills no log.
void MemberServer::Refuse(Session& session, RefusedReason reason, uint32_t detail) {
  const Share* share = ShareOf(session);
  node_.events().AddCounted(RefusedEvent(share, session.peer.process.pid, reason),
                            kRefusedWindowNs);
  const auto connection = session.connection;  // the session ends with Close
  connection->SendMessage(MessageType::kRefused,
                          wire::Refused{static_cast<uint32_t>(reason), detail});
  connection->Close();
}

void MemberServer::OnFrame(Session& session, const wire::FrameHeader& header, const uint8_t* body,
                           std::vector<UniqueFd>& fds) {
  Share* share = ShareOf(session);
  if (share == nullptr) return Refuse(session, RefusedReason::kShareEnded);
  const auto message = DecodeMemberMessage(header, body, share->device_count());
  if (!message) return Refuse(session, RefusedReason::kMalformed);
  if (const auto* join = std::get_if<wire::Join>(&*message)) {
    if (session.joined) return Refuse(session, RefusedReason::kMalformed);
    return OnJoin(session, *join, fds);
  }
  if (const auto* wanted = std::get_if<wire::UsageWanted>(&*message)) {
    if (!fds.empty()) return Refuse(session, RefusedReason::kMalformed);
    return OnUsageWanted(session, *wanted);
  }
  if (!session.joined || !fds.empty()) return Refuse(session, RefusedReason::kMalformed);
  Member* member = MemberOf(session);
  if (member == nullptr) return;  // its connection is being closed
  Leases& leases = node_.leases();
  if (const auto* request = std::get_if<wire::GrantRequest>(&*message)) {
    OnGrantRequest(session, *request);
  } else if (const auto* made = std::get_if<wire::ContextMade>(&*message)) {
    OnContextMade(session, *made);
  } else if (const auto* wanted = std::get_if<LeaseWanted>(&*message)) {
    leases.Wanted(*share, *member, wanted->device);
  } else if (const auto* idle = std::get_if<LeaseIdle>(&*message)) {
    leases.Idle(*share, *member, idle->device, idle->sequence);
  } else if (const auto* drained = std::get_if<LeaseDrained>(&*message)) {
    leases.Drained(*share, *member, drained->device, drained->sequence);
  } else if (const auto* shared = std::get_if<wire::MemoryShared>(&*message)) {
    node_.sharing().OnShared(*share, *member, *shared);
  } else if (const auto* opening = std::get_if<wire::MemoryOpening>(&*message)) {
    node_.sharing().OnOpening(*share, *member, *opening);
  } else if (const auto* gone = std::get_if<wire::MemoryLetGo>(&*message)) {
    node_.sharing().OnLetGo(*share, *member, *gone);
  } else if (const auto* taken = std::get_if<wire::MemoryTaken>(&*message)) {
    node_.sharing().OnTaken(*share, *member, *taken);
  }
}

void MemberServer::OnJoin(Session& session, const wire::Join& join, std::vector<UniqueFd>& fds) {
  Share& share = *ShareOf(session);
  if (join.layout_version != shm::kLimitsVersion) {
    return Refuse(session, RefusedReason::kVersion);
  }
  if (fds.size() != 1) return Refuse(session, RefusedReason::kMalformed);
  auto usage = UsageMapping::Map(std::move(fds[0]));
  fds.clear();
  if (!usage) return Refuse(session, RefusedReason::kMalformed);

  // Or it would have the memory of two, and say to each what it uses of the other.
  if (!node_.members().LeavesOthers(share, session.peer.process)) {
    return Refuse(session, RefusedReason::kNotAllowed);
  }
  if (!node_.containers().MayJoinFrom(share, session.peer)) {
    return Refuse(session, RefusedReason::kOtherContainer);
  }
  Member* member = share.FindLiving(session.peer.process);
  if (member != nullptr && join.previous_slot != member->slot) {
    // The process runs another program now (exec), or forgot its slot: what it was has departed.
    node_.members().Depart(share, *member);
    member = nullptr;
  }
  if (member == nullptr) {
    if (share.ended()) return Refuse(session, RefusedReason::kShareEnded);
    member = node_.members().Admit(share, session.peer.process, join.inner_pid,
                                   std::move(session.watch));
    if (member == nullptr) return Refuse(session, RefusedReason::kTooManyMembers);
  }
  share.SetUsage(*member, std::move(*usage));
  const auto former = share.Connect(*member, session.connection);
  if (former != nullptr) former->Close();
  session.joined = true;
  session.watch = {};
  quiet_.Remove(session.id);
  session.slot = member->slot;
  session.join_timer.cancel();
  session.connection->SendMessage(
      MessageType::kWelcome, wire::Welcome{member->slot, 0, share.limits()->header.epoch.load()});
  // One that is new has submitted nothing yet, and says when it wants to.
  if (join.previous_slot != wire::kNoSlot) node_.leases().RescheduleAll(share);
  node_.sharing().Joined(share, *member);
}

// Whoever reaches the socket of a share may see what its members use, and is held to nothing by it:
// a monitor that joins nothing asks here too.
void MemberServer::OnUsageWanted(Session& session, const wire::UsageWanted& wanted) {
  Share& share = *ShareOf(session);
  if (wanted.layout_version != shm::kLimitsVersion) {
    return Refuse(session, RefusedReason::kVersion);
  }
  const shm::LimitsFile& limits = *share.limits();
  uint32_t slot = std::min(wanted.first_slot, kMaxMembers);
  for (uint32_t shown = 0; slot < kMaxMembers && shown < kMaxShownAtOnce; ++slot) {
    Member* member = share.FindMember(slot);
    const uint64_t serial = limits.members[slot].usage_serial.load();
    if (member == nullptr || serial == 0 || member->usage->Reader() < 0) continue;
    const wire::UsageShown message{slot, 1, serial};
    if (!session.connection->SendWithDescriptor(MessageType::kUsageShown, message,
                                                member->usage->Reader())) {
      break;  // its socket is full: it asks on when it has read what there is
    }
    ++shown;
  }
  session.connection->SendMessage(MessageType::kUsageShown, wire::UsageShown{slot, 0, 0});
}

void MemberServer::OnGrantRequest(Session& session, const wire::GrantRequest& request) {
  const std::weak_ptr<Connection> connection = session.connection;
  node_.AskMemory(*ShareOf(session),
                  {session.slot, request.device, request.needed_bytes, request.wait_ms, connection,
                   [connection, id = request.id](wire::GrantResult result, uint64_t grant_bytes) {
                     const auto open = connection.lock();
                     if (open == nullptr) return;
                     open->SendMessage(MessageType::kGrantReply,
                                       wire::GrantReply{id, result, 0, grant_bytes});
                   }});
}

void MemberServer::OnContextMade(Session& session, const wire::ContextMade& made) {
  const std::weak_ptr<Connection> connection = session.connection;
  node_.settling().Settle(*ShareOf(session), *MemberOf(session), made,
                          [connection](const wire::ContextSettled& settled) {
                            const auto open = connection.lock();
                            if (open == nullptr) return;
                            open->SendMessage(MessageType::kContextSettled, settled);
                          });
}

}  // namespace prorata::agent
