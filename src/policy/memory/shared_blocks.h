#pragma once

// Memory that several members hold: who pays for each block, and who is next.
//
// A block is charged to the member that made it. When that one frees it or dies while others still
// have it open, the device keeps it; so its charge passes to the one that has held it longest, as
// the device's own account does:
//
//   let go / died      Ask(next)             the next holder charges itself, or has closed it
//   Taken(next, yes)   Moved, Settled        the grant moves; the one before may uncharge now
//   Taken(next, no)    Ask(the one after)    ... and with nobody left: Settled, and the block ends
//
// So at every moment somebody is charged: the next charges before the one before uncharges. A
// member whose departure waits for an answer keeps its grant (Owes). After a start of the agent
// nothing is settled in a share until all its living members have said again what they hold
// (`complete` below).
//
// A block belongs to one share. Members of other shares never hold it here: they are refused, or
// pay for what they open by themselves.
//
// Not thread-safe: the agent is one thread. All numbers come from members: nothing is believed
// beyond the member's own share, and what one member can make here is bounded.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace prorata::policy {

class SharedBlocks {
 public:
  using Name = std::pair<uint64_t, uint64_t>;
  static constexpr Name kNoName = {0, 0};
  static constexpr uint32_t kMaxBlocks = 4096;  // that one member made
  static constexpr size_t kMaxNames = 64;       // of one block

  struct Action {
    enum class Kind : uint8_t {
      kAsk,      // ask member `slot` to pay for the block
      kMoved,    // `bytes` of grant pass from `from` to `slot`
      kSettled,  // answer member `slot`'s letting go, which it called `id`
    };
    Kind kind;
    uint32_t slot = 0;
    uint32_t from = 0;
    uint32_t device = 0;
    uint64_t number = 0;
    uint64_t bytes = 0;
    uint64_t id = 0;
  };
  using Actions = std::vector<Action>;

  struct Block {
    uint32_t device = 0;
    uint64_t bytes = 0;
  };
  enum class Opened : uint8_t { kHeld, kUnknown, kForeign };
  struct Opening {
    Opened opened = Opened::kUnknown;
    uint64_t share = 0;  // whose it is
    uint64_t number = 0;
    Block block;
  };

  // A member has the block `number`, and pays for it or does not; `name` leads to it from now on.
  // False: too many. A name that leads elsewhere already stays there; a block that somebody pays
  // for keeps its payer.
  bool Note(uint64_t share, uint32_t slot, uint64_t number, Block block, Name name, bool pays);

  // A member of `share` is about to open what `name` leads to: of its own share, it holds it now.
  Opening Open(uint64_t share, uint32_t slot, Name name);

  // A member has no more of the block. Settled at once if it does not pay.
  Actions LetGo(uint64_t share, uint32_t slot, uint64_t number, uint64_t id, bool complete);
  Actions Taken(uint64_t share, uint32_t slot, uint64_t number, bool taken, bool complete);
  // The member's process is dead.
  Actions Depart(uint64_t share, uint32_t slot, bool complete);
  // What the member was asked may not have reached it.
  Actions AskAgain(uint64_t share, uint32_t slot, bool complete);
  // The share may have become complete.
  Actions Resume(uint64_t share, bool complete);
  void ForgetShare(uint64_t share);

  // Whether a departed member's grant may still stand for memory that another is to take over: it
  // pays for a block, or it is not known who does.
  bool Owes(uint64_t share, uint32_t slot) const;

  size_t blocks() const { return blocks_.size(); }
  size_t names() const { return names_.size(); }

 private:
  static constexpr uint32_t kNobody = ~uint32_t{0};
  using Key = std::pair<uint64_t, uint64_t>;  // share, number

  struct State {
    Block block;
    uint32_t maker = kNobody;
    uint32_t payer = kNobody;
    bool leaving = false;  // the payer has let go
    uint64_t leave_id = 0;
    uint32_t asked = kNobody;
    std::deque<uint32_t> holders;  // who has it open and does not pay, the longest first
    std::vector<Name> names;
  };
  using Blocks = std::map<Key, State>;

  void Advance(Blocks::iterator at, bool complete, Actions* actions);
  void RemoveHolder(State& state, uint32_t slot);
  Blocks::iterator End(Blocks::iterator at);
  Blocks::iterator FirstOf(uint64_t share) { return blocks_.lower_bound({share, 0}); }

  Blocks blocks_;
  std::map<Name, Key> names_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> made_;  // blocks, by the member that made them
};

}  // namespace prorata::policy
