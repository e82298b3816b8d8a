#include "agent/memory/sharing.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace prorata::agent {

using policy::SharedBlocks;
using wire::MemoryResult;
using wire::MessageType;

namespace {

// How long after its start an agent waits for members to say again what they hold.
constexpr int64_t kJoinAgainNs = 2 * kNsPerS;

SharedBlocks::Name NameOf(const wire::MemoryName& name) { return {name.word[0], name.word[1]}; }

void Answer(const Member& member, const wire::MemoryAnswer& answer) {
  if (answer.id == 0 || member.connection == nullptr) return;
  member.connection->SendMessage(MessageType::kMemoryAnswer, answer);
}

}  // namespace

bool Sharing::IsComplete(const Share& share) const {
  if (RealClock().NowNs() - started_ns_ > kJoinAgainNs) return true;
  const std::vector<Member*> members = share.Members();
  return std::all_of(members.begin(), members.end(), [](const Member* member) {
    return member->departed || member->reported_references;
  });
}

void Sharing::Do(Share& share, const SharedBlocks::Actions& actions) {
  using Kind = SharedBlocks::Action::Kind;
  for (const SharedBlocks::Action& action : actions) {
    const Member* member = share.FindMember(action.slot);
    if (action.kind == Kind::kMoved) {
      share.MoveGrant(action.from, action.slot, action.device, action.bytes);
    } else if (member == nullptr || member->departed || member->connection == nullptr) {
      continue;  // an asked one without a connection is asked again when it has one
    } else if (action.kind == Kind::kAsk) {
      member->connection->SendMessage(MessageType::kMemoryTake, wire::MemoryTake{action.number});
    } else {
      Answer(*member, {action.id, action.number, 0, MemoryResult::kNoted, 0, 0, 0});
    }
  }
}

void Sharing::OnShared(Share& share, Member& member, const wire::MemoryShared& message) {
  // That somebody else pays is believed of those who were there before this agent: any other has
  // asked to open it.
  const bool believed = message.pays != 0 || !member.reported_references;
  const bool noted = believed && blocks_.Note(share.id(), member.slot, message.number,
                                              {message.device, message.bytes}, NameOf(message.name),
                                              message.pays != 0);
  Answer(member, {message.id, message.number, message.bytes,
                  noted ? MemoryResult::kNoted : MemoryResult::kTooMany, message.device, 0, 0});
}

void Sharing::OnOpening(Share& share, Member& member, const wire::MemoryOpening& message) {
  const auto opening = blocks_.Open(share.id(), member.slot, NameOf(message.name));
  wire::MemoryAnswer answer = {message.id, 0, 0, MemoryResult::kUnknown, 0, 0, 0};
  if (opening.opened == SharedBlocks::Opened::kHeld) {
    answer = {message.id,
              opening.number,
              opening.block.bytes,
              MemoryResult::kNoted,
              opening.block.device,
              1,
              0};
  } else if (opening.opened == SharedBlocks::Opened::kForeign) {
    const Share* owner = find_(opening.share);
    const bool agreed = owner != nullptr && owner->SharesMemoryWith(share);
    answer.result = agreed ? MemoryResult::kAgreed : MemoryResult::kForeign;
    if (!agreed && refused_.insert({share.id(), member.slot}).second) {
      spdlog::warn(
          "process {} of share '{}' was refused memory of share '{}': the two do not share memory "
          "(`prorata run --share-memory-with` on the latter would let it)",
          member.process.pid, share.config().name, owner != nullptr ? owner->config().name : "");
    }
  }
  Answer(member, answer);
}

void Sharing::OnLetGo(Share& share, Member& member, const wire::MemoryLetGo& message) {
  if (message.number == 0) {  // a member that joined again has said all that it holds
    member.reported_references = true;
    return Do(share, blocks_.Resume(share.id(), IsComplete(share)));
  }
  Do(share, blocks_.LetGo(share.id(), member.slot, message.number, message.id, IsComplete(share)));
}

void Sharing::OnTaken(Share& share, Member& member, const wire::MemoryTaken& message) {
  Do(share,
     blocks_.Taken(share.id(), member.slot, message.number, message.taken != 0, IsComplete(share)));
}

void Sharing::Joined(Share& share, Member& member) {
  Do(share, blocks_.AskAgain(share.id(), member.slot, IsComplete(share)));
}

void Sharing::Departed(Share& share, Member& member) {
  refused_.erase({share.id(), member.slot});
  Do(share, blocks_.Depart(share.id(), member.slot, IsComplete(share)));
}

void Sharing::Forget(uint64_t share_id) { blocks_.ForgetShare(share_id); }

void Sharing::Tick(Share& share) {
  if (RealClock().NowNs() - started_ns_ > 2 * kJoinAgainNs) return;
  Do(share, blocks_.Resume(share.id(), IsComplete(share)));
}

}  // namespace prorata::agent
