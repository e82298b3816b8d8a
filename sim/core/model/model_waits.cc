#include <algorithm>

#include "sim/core/model/model.h"
#include "sim/core/model/model_lists.h"

// What waiters need: is it so yet, and when is it worth looking again? The second must never be
// later than the truth as long as nobody changes the machine, and should not be much earlier, since
// every look is a wake-up.

namespace prorata::simgpu {

namespace {

// How far down a queue to add up durations: a lower bound stays one when the rest is left out.
constexpr int kMaxPoll = 256;

}  // namespace

Code Model::Check(Condition* condition) const {
  const ProcessRecord& process = state().processes[condition->process];
  if (process.slot.generation != condition->process_generation) return Code::kOk;
  if (!condition->reached) {
    if (!DeviceIsThere(*condition)) return Code::kNotReady;
    condition->reached = true;
    condition->visible_ticket = VisibleTicket(*condition);
  }
  return process.ran_tickets >= condition->visible_ticket ? Code::kOk : Code::kNotReady;
}

bool Model::DeviceIsThere(const Condition& condition) const {
  if (condition.kind != Condition::Kind::kContext) {
    return StreamPassed(condition.index, condition.generation, condition.limit);
  }
  const ContextRecord& context = state().contexts[condition.index];
  if (context.slot.generation != condition.generation) return true;
  for (Index stream = context.streams.head; stream != 0;
       stream = ContextStreams::Next(state(), stream)) {
    const Index head = state().streams[stream].items.head;
    if (head != 0 && state().items[head].ticket < condition.limit) return false;
  }
  return true;
}

// Which kernels must have run, now that the device is there. When what was waited for is gone, and
// its ticket with it: all.
uint64_t Model::VisibleTicket(const Condition& condition) const {
  const uint64_t all = state().processes[condition.process].left_tickets;
  uint64_t ticket = 0;
  if (condition.kind == Condition::Kind::kContext) {
    const ContextRecord& context = state().contexts[condition.index];
    if (context.slot.generation != condition.generation) return all;
    ticket = context.visible_ticket;
    for (Index stream = context.streams.head; stream != 0;
         stream = ContextStreams::Next(state(), stream)) {
      ticket = std::max(ticket, state().streams[stream].visible_ticket);
    }
    return ticket;
  }
  const StreamRecord& stream = state().streams[condition.index];
  if (stream.slot.generation != condition.generation) return all;
  if (condition.kind == Condition::Kind::kSequence) return stream.visible_ticket;
  for (Index item = stream.left.head; item != 0 && state().items[item].sequence <= condition.limit;
       item = state().items[item].next) {
    ticket = state().items[item].left_ticket;
  }
  return ticket;
}

void Model::WantVisible(const Condition& condition) {
  if (!condition.reached) return;
  const uint64_t& wanted = state().processes[condition.process].wanted_ticket;
  if (wanted == 0 || wanted > condition.visible_ticket) tx_.Mut(wanted) = condition.visible_ticket;
}

// True while the stream's head goes on only when the executor has completed some action.
bool Model::WaitsForExecutor(Index index) const {
  constexpr int kMaxHops = 16;
  const Index process = state().contexts[state().streams[index].context].process;
  for (int hop = 0; hop < kMaxHops; ++hop) {
    const StreamRecord& stream = state().streams[index];
    // Another process's executor does not wake this one's waiters.
    if (state().contexts[stream.context].process != process) return false;
    if (stream.place == Place::kAction || stream.place == Place::kActionTaken) return true;
    if (stream.place != Place::kBlocked) return false;
    index = stream.blocked_on;
  }
  return false;
}

// Of the head of a stream, without waiting for anything else.
int64_t Model::RemainingNs(Index index) const {
  const StreamRecord& stream = state().streams[index];
  if (stream.items.head == 0) return 0;
  const ItemRecord& item = state().items[stream.items.head];
  const ContextRecord& context = state().contexts[stream.context];
  switch (stream.place) {
    case Place::kAction:
    case Place::kActionTaken:
      return 0;
    case Place::kRunning:
      // Those it waits for may be done at any moment.
      if (stream.finish_ns == kNotYetNs) return 0;
      return std::max<int64_t>(stream.finish_ns - context.engine_ns, 0);
    case Place::kCopying: {
      const CopyEngine& engine = state().devices[stream.copy_device].copy[stream.copy_engine];
      if (engine.queue.head == index) return std::max<int64_t>(engine.finish_ns - now(), 0);
      return item.duration_ns;
    }
    case Place::kDelayed:
      return std::max<int64_t>(stream.finish_ns - now(), 0) + item.duration_ns;
    default:
      return item.duration_ns;
  }
}

int64_t Model::EarliestNs(const Condition& condition) const {
  if (condition.reached) return kForever;  // only actions are missing
  const auto stream_ns = [&](Index index, auto&& included) {
    const StreamRecord& stream = state().streams[index];
    int64_t sum = 0;
    uint64_t sequence = stream.completed + 1;
    int looked = 0;
    for (Index item = stream.items.head; item != 0 && looked < kMaxPoll && included(item, sequence);
         item = state().items[item].next, ++sequence, ++looked) {
      if (looked == 0 && WaitsForExecutor(index)) return kForever;
      sum += looked == 0 ? RemainingNs(index) : state().items[item].duration_ns;
    }
    return sum;
  };
  int64_t remaining = 0;
  if (condition.kind != Condition::Kind::kContext) {
    remaining = stream_ns(condition.index,
                          [&](Index, uint64_t sequence) { return sequence <= condition.limit; });
  } else {
    for (Index index = state().contexts[condition.index].streams.head; index != 0;
         index = ContextStreams::Next(state(), index)) {
      remaining = std::max(remaining, stream_ns(index, [&](Index item, uint64_t) {
                             return state().items[item].ticket < condition.limit;
                           }));
    }
  }
  return remaining == kForever ? kForever : now() + remaining;
}

// The first time at which a stream of the process could get to an action.
int64_t Model::EarliestActionNs(Index process) const {
  const ProcessRecord& record = state().processes[process];
  // While one is being run, its completion is heard of.
  if (record.pending_actions == 0 || record.taken != 0) return kForever;
  int64_t earliest = kForever;
  for (Index context = record.contexts.head; context != 0;
       context = ProcessContexts::Next(state(), context)) {
    for (Index index = state().contexts[context].streams.head; index != 0;
         index = ContextStreams::Next(state(), index)) {
      const StreamRecord& stream = state().streams[index];
      int64_t sum = 0;
      int looked = 0;
      for (Index item = stream.items.head; item != 0; item = state().items[item].next) {
        if (looked > 0) sum += state().items[item].duration_ns;
        if (looked == 0 && stream.place != Place::kActionTaken) sum = RemainingNs(index);
        const bool taken = looked == 0 && stream.place == Place::kActionTaken;
        if ((state().items[item].token != 0 && !taken) || looked == kMaxPoll) {
          earliest = std::min(earliest, now() + sum);
          break;
        }
        if (taken) break;  // what comes behind it is heard of when it completes
        ++looked;
      }
    }
  }
  return earliest;
}

}  // namespace prorata::simgpu
