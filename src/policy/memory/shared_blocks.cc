#include "policy/memory/shared_blocks.h"

#include <algorithm>

namespace prorata::policy {

namespace {

template <typename List, typename T>
bool Contains(const List& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

bool SharedBlocks::Note(uint64_t share, uint32_t slot, uint64_t number, Block block, Name name,
                        bool pays) {
  auto at = blocks_.find({share, number});
  if (at == blocks_.end()) {
    uint32_t& made = made_[{share, slot}];
    if (made == kMaxBlocks) return false;
    ++made;
    at = blocks_.emplace(Key{share, number}, State{}).first;
    at->second.block = block;
    at->second.maker = slot;
  }
  State& state = at->second;
  if (pays && state.payer == kNobody) {
    RemoveHolder(state, slot);
    state.payer = slot;
    state.leaving = false;
  } else if (state.payer != slot && !Contains(state.holders, slot)) {
    state.holders.push_back(slot);
  }
  if (name == kNoName || names_.contains(name)) return true;
  if (state.names.size() == kMaxNames) return false;
  names_.emplace(name, at->first);
  state.names.push_back(name);
  return true;
}

SharedBlocks::Opening SharedBlocks::Open(uint64_t share, uint32_t slot, Name name) {
  const auto found = names_.find(name);
  if (found == names_.end()) return {};
  const auto at = blocks_.find(found->second);
  State& state = at->second;
  Opening opening = {Opened::kForeign, at->first.first, at->first.second, state.block};
  if (opening.share != share) return opening;
  // The one that pays is letting go and the next is asked already: whoever comes now is last.
  const bool known = state.payer == slot && !state.leaving;
  if (!known && !Contains(state.holders, slot)) state.holders.push_back(slot);
  opening.opened = Opened::kHeld;
  return opening;
}

void SharedBlocks::RemoveHolder(State& state, uint32_t slot) {
  std::erase(state.holders, slot);
  if (state.asked == slot) state.asked = kNobody;
}

SharedBlocks::Blocks::iterator SharedBlocks::End(Blocks::iterator at) {
  for (const Name& name : at->second.names) names_.erase(name);
  const auto made = made_.find({at->first.first, at->second.maker});
  if (made != made_.end() && made->second > 0) --made->second;
  return blocks_.erase(at);
}

// Finds a new payer for a block whose payer has let go. May end the block.
void SharedBlocks::Advance(Blocks::iterator at, bool complete, Actions* actions) {
  State& state = at->second;
  const bool without = state.payer == kNobody || state.leaving;
  if (!without || state.asked != kNobody || !complete) return;
  const auto [share, number] = at->first;
  if (!state.holders.empty()) {
    state.asked = state.holders.front();
    actions->push_back({.kind = Action::Kind::kAsk, .slot = state.asked, .number = number});
    return;
  }
  if (state.payer != kNobody) {
    actions->push_back({.kind = Action::Kind::kSettled,
                        .slot = state.payer,
                        .number = number,
                        .id = state.leave_id});
  }
  End(at);
}

SharedBlocks::Actions SharedBlocks::LetGo(uint64_t share, uint32_t slot, uint64_t number,
                                          uint64_t id, bool complete) {
  Actions actions;
  const auto at = blocks_.find({share, number});
  if (at != blocks_.end() && at->second.payer == slot) {
    at->second.leaving = true;
    at->second.leave_id = id;
    Advance(at, complete, &actions);
    return actions;
  }
  actions.push_back({.kind = Action::Kind::kSettled, .slot = slot, .number = number, .id = id});
  if (at == blocks_.end()) return actions;
  RemoveHolder(at->second, slot);
  Advance(at, complete, &actions);
  return actions;
}

SharedBlocks::Actions SharedBlocks::Taken(uint64_t share, uint32_t slot, uint64_t number,
                                          bool taken, bool complete) {
  Actions actions;
  const auto at = blocks_.find({share, number});
  if (at == blocks_.end() || at->second.asked != slot) return actions;
  State& state = at->second;
  RemoveHolder(state, slot);
  if (!taken) {
    Advance(at, complete, &actions);
    return actions;
  }
  const uint32_t before = state.payer;
  actions.push_back({.kind = Action::Kind::kMoved,
                     .slot = slot,
                     .from = before == kNobody ? slot : before,
                     .device = state.block.device,
                     .number = number,
                     .bytes = state.block.bytes});
  if (before != kNobody) {
    actions.push_back(
        {.kind = Action::Kind::kSettled, .slot = before, .number = number, .id = state.leave_id});
  }
  state.payer = slot;
  state.leaving = false;
  return actions;
}

SharedBlocks::Actions SharedBlocks::Depart(uint64_t share, uint32_t slot, bool complete) {
  Actions actions;
  made_.erase({share, slot});
  for (auto at = FirstOf(share); at != blocks_.end() && at->first.first == share;) {
    const auto block = at++;
    State& state = block->second;
    RemoveHolder(state, slot);
    if (state.payer == slot) {
      state.leaving = true;
      state.leave_id = 0;
    }
    Advance(block, complete, &actions);
  }
  return actions;
}

SharedBlocks::Actions SharedBlocks::AskAgain(uint64_t share, uint32_t slot, bool complete) {
  for (auto at = FirstOf(share); at != blocks_.end() && at->first.first == share; ++at) {
    if (at->second.asked == slot) at->second.asked = kNobody;
  }
  return Resume(share, complete);
}

SharedBlocks::Actions SharedBlocks::Resume(uint64_t share, bool complete) {
  Actions actions;
  for (auto at = FirstOf(share); at != blocks_.end() && at->first.first == share;) {
    Advance(at++, complete, &actions);
  }
  return actions;
}

void SharedBlocks::ForgetShare(uint64_t share) {
  for (auto at = FirstOf(share); at != blocks_.end() && at->first.first == share;) at = End(at);
  std::erase_if(made_, [share](const auto& entry) { return entry.first.first == share; });
}

bool SharedBlocks::Owes(uint64_t share, uint32_t slot) const {
  for (auto at = blocks_.lower_bound({share, 0}); at != blocks_.end() && at->first.first == share;
       ++at) {
    if (at->second.payer == slot || at->second.payer == kNobody) return true;
  }
  return false;
}

}  // namespace prorata::policy
