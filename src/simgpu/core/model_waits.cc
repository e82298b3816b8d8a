#include <algorithm>

#include "simgpu/core/model.h"
#include "simgpu/core/model_lists.h"

// What waiters need: is it so yet, and when is it worth looking again? The second must never be
// later than the truth as long as nobody changes the machine, and should not be much earlier, since
// every look is a wake-up.

namespace prorata::simgpu {

namespace {

// How far down a queue to add up durations: a lower bound stays one when the rest is left out.
constexpr int kMaxLook = 256;

}  // namespace

Code Model::Check(const Condition& condition) const {
  if (condition.kind == Condition::Kind::kSequence) {
    return StreamPassed(condition.index, condition.generation, condition.limit) ? Code::kOk
                                                                                : Code::kNotReady;
  }
  const ContextRecord& context = state().contexts[condition.index];
  if (context.slot.generation != condition.generation) return Code::kOk;
  for (Index stream = context.streams.head; stream != 0;
       stream = ContextStreams::Next(state(), stream)) {
    const Index head = state().streams[stream].items.head;
    if (head != 0 && state().items[head].ticket < condition.limit) return Code::kNotReady;
  }
  return Code::kOk;
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
      return std::max<int64_t>(stream.finish_ns - context.engine_ns, 0);
    case Place::kCopying: {
      const CopyEngine& engine = state().devices[context.device].copy[stream.copy_engine];
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
  const auto stream_ns = [&](Index index, auto&& included) {
    const StreamRecord& stream = state().streams[index];
    int64_t sum = 0;
    uint64_t sequence = stream.completed + 1;
    int looked = 0;
    for (Index item = stream.items.head; item != 0 && looked < kMaxLook && included(item, sequence);
         item = state().items[item].next, ++sequence, ++looked) {
      sum += looked == 0 ? RemainingNs(index) : state().items[item].duration_ns;
    }
    return sum;
  };
  int64_t remaining = 0;
  if (condition.kind == Condition::Kind::kSequence) {
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
  return now() + remaining;
}

// The first time at which a stream of the process could get to an action.
int64_t Model::EarliestActionNs(Index process) const {
  const ProcessRecord& record = state().processes[process];
  if (record.pending_actions == 0) return kForever;
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
        if ((state().items[item].token != 0 && !taken) || looked == kMaxLook) {
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
