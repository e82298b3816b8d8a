#include "sim/core/model/model.h"
#include "sim/core/model/model_lists.h"

// What the executor of a process is to run, in which order, and what of it the host may know.
//
// An entry with a token is in its process's list of actions from the end of its engine time until
// it is complete:
//   A: a kernel: out of its stream's queue, and in the stream's list of kernels left behind;
//   B: anything else: still the head of its stream, which is kAction, or kActionTaken while it is
//      the process's `taken`. The executor may defer it ("not yet"): then it is in no list, its
//      stream still kActionTaken, and whoever deferred it asks again and completes it.
// A stream that is destroyed lives on until both are over.

namespace prorata::simgpu {

// Its place is none: it was just taken off its engine, or needed none.
void Model::FinishEngine(Index index) {
  const StreamRecord& stream = state().streams[index];
  const Index item = stream.items.head;
  if (state().items[item].token == 0) {
    Complete(index);
    return;
  }
  const Index process = state().contexts[stream.context].process;
  ActionList::Append(tx_, state().processes[process].actions, item);
  ItemRecord& changed = tx_.Mut(state().items[item]);
  changed.stream = index;
  changed.sequence = stream.completed + 1;
  changed.ended_ns = now();
  changed.started_ns = changed.kind == WorkKind::kHost ? now() : stream.started_ns;
  wake_executors_.push_back(process);
  if (changed.kind == WorkKind::kKernel) {
    LeaveBehind(index);
  } else {
    tx_.Mut(stream.place) = Place::kAction;
  }
}

void Model::LeaveBehind(Index index) {
  const StreamRecord& stream = state().streams[index];
  const Index process = state().contexts[stream.context].process;
  const Index item = UnlinkHead(index);
  ItemRecord& changed = tx_.Mut(state().items[item]);
  changed.next = 0;
  changed.left_ticket = ++tx_.Mut(state().processes[process].left_tickets);
  if (stream.left.tail != 0) {
    tx_.Mut(state().items[stream.left.tail].next) = item;
  } else {
    tx_.Mut(stream.left.head) = item;
  }
  tx_.Mut(stream.left.tail) = item;
  tx_.Mut(stream.left_count) += 1;
  Passed(index);
}

// The oldest kernel that the stream has left behind: run, or dropped with its context.
void Model::PopLeft(Index index) {
  const StreamRecord& stream = state().streams[index];
  const Index process = state().contexts[stream.context].process;
  const Index item = stream.left.head;
  StreamRecord& changed = tx_.Mut(stream);
  changed.left.head = state().items[item].next;
  if (changed.left.head == 0) changed.left.tail = 0;
  changed.left_count -= 1;
  RemoveAction(process, item);
  ReleaseItem(process, item);
  if (stream.slot.life == Life::kEnding && stream.place == Place::kNone) MarkDirty(index);
}

void Model::RemoveAction(Index process, Index item) {
  const ProcessRecord& record = state().processes[process];
  ActionList::Remove(tx_, record.actions, item);
  if (record.taken == item) tx_.Mut(record.taken) = 0;
  if (state().items[item].left_ticket == 0) return;
  // All kernels before the first that is still there. Few look further than the head: each entry
  // that is not a kernel holds a stream up.
  Index first = record.actions.head;
  while (first != 0 && state().items[first].left_ticket == 0) {
    first = ActionList::Next(state(), first);
  }
  ProcessRecord& changed = tx_.Mut(record);
  changed.ran_tickets = first != 0 ? state().items[first].left_ticket - 1 : changed.left_tickets;
  if (changed.wanted_ticket != 0 && changed.ran_tickets >= changed.wanted_ticket) {
    changed.wanted_ticket = 0;
    wake_waiters_.push_back(process);
    WakeTicketWaiters(process);
  }
}

bool Model::TakeAction(Index process, Action* action) {
  const ProcessRecord& record = state().processes[process];
  const Index index = record.actions.head;
  if (index == 0 || record.taken != 0) return false;
  tx_.Mut(record.taken) = index;
  const ItemRecord& item = state().items[index];
  if (item.left_ticket == 0) tx_.Mut(state().streams[item.stream].place) = Place::kActionTaken;
  *action = {.token = item.token,
             .stream = HandleOf(Kind::kStream, item.stream),
             .sequence = item.sequence,
             .started_ns = item.started_ns,
             .ended_ns = item.ended_ns};
  return true;
}

// The entry of an action that was handed out and is not complete, deferred or not; 0 when it is
// none. `stream` is 0 when that is gone.
Index Model::TakenItem(const Action& action, Index* stream) const {
  *stream = Find(Kind::kStream, action.stream, /*also_ending=*/true);
  if (*stream == 0) return 0;
  const StreamRecord& record = state().streams[*stream];
  const Index taken = state().processes[state().contexts[record.context].process].taken;
  if (taken != 0 && state().items[taken].stream == *stream &&
      state().items[taken].sequence == action.sequence) {
    return taken;
  }
  const bool deferred =
      record.place == Place::kActionTaken && record.completed + 1 == action.sequence;
  return deferred ? record.items.head : 0;
}

Code Model::CompleteAction(const Action& action) {
  Index stream = 0;
  const Index item = TakenItem(action, &stream);
  if (item == 0) return stream == 0 ? Code::kInvalidHandle : Code::kInvalidValue;
  const Index process = state().contexts[state().streams[stream].context].process;
  wake_executors_.push_back(process);
  if (state().items[item].left_ticket != 0) {
    PopLeft(stream);
    return Code::kOk;
  }
  Unplace(stream);
  wake_waiters_.push_back(process);
  Complete(stream);
  return Code::kOk;
}

Code Model::DeferAction(const Action& action) {
  Index stream = 0;
  const Index item = TakenItem(action, &stream);
  if (item == 0) return stream == 0 ? Code::kInvalidHandle : Code::kInvalidValue;
  // A kernel must run in its turn.
  if (state().items[item].left_ticket != 0) return Code::kInvalidValue;
  const Index process = state().contexts[state().streams[stream].context].process;
  if (state().processes[process].taken != item) return Code::kOk;
  RemoveAction(process, item);
  wake_executors_.push_back(process);
  return Code::kOk;
}

}  // namespace prorata::simgpu
