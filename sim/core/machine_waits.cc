#include <algorithm>

#include "sim/core/futex.h"
#include "sim/core/machine.h"
#include "sim/core/machine_operation.h"

// Waiting and the executor: who sleeps, until when, and who wakes whom.
//
// Nothing happens in the model by itself, so a waiter brings it on: it sleeps until the first time
// at which its wish could be true (Model::EarliestNs, and not before the machine's next event),
// then looks again. With contention that takes a few rounds, not one per event of others. It is
// woken early only by what no lower bound foresees: a finished action, a context's end, a death.
// Where only an action is missing, it sleeps until that is complete.

namespace prorata::simgpu {

namespace {

constexpr int64_t kMaxSleepNs = 50 * kNsPerMs;  // real time; bounds what a lost wake-up can cost

using Kind = Model::Kind;

}  // namespace

Code Machine::Query(const Target& target) {
  Operation op(this);
  Condition condition;
  const Code found = op.Resolve(target, &condition);
  return found == Code::kOk ? op.model.Check(&condition) : found;
}

Code Machine::Wait(const Target& target, int64_t deadline_ns) {
  Condition condition;
  for (bool first = true;; first = false) {
    int64_t sleep_ns = 0;
    uint32_t seen = 0;
    std::atomic<uint32_t>* word = nullptr;
    {
      Operation op(this);
      if (first) {
        const Code found = op.Resolve(target, &condition);
        if (found != Code::kOk) return found;
      }
      if (op.model.Check(&condition) == Code::kOk) return Code::kOk;
      if (op.now_ns >= deadline_ns) return Code::kTimedOut;
      // Nothing can change before the machine's next event, and not this before its own work.
      op.model.Settle();
      const int64_t next_ns = op.model.NextEventNs();
      const int64_t wake_ns =
          std::min(std::max(next_ns, op.model.EarliestNs(condition)), deadline_ns);
      if (virtual_clock_ != nullptr) {
        if (wake_ns == kForever) return Code::kStuck;
        virtual_clock_->AdvanceTo(std::min(next_ns, deadline_ns));
        continue;
      }
      op.model.WantVisible(condition);
      word = &attachment_->state()->waiter_word[condition.process];
      seen = word->load();
      sleep_ns = op.RealSleepNs(wake_ns);
    }
    FutexWait(word, seen, sleep_ns);
  }
}

int64_t Operation::RealSleepNs(int64_t wake_ns) const {
  if (wake_ns == kForever) return kMaxSleepNs;
  const double real =
      static_cast<double>(wake_ns - now_ns) * machine_->dilated_clock_.dilation() + 1;
  return real > kMaxSleepNs ? kMaxSleepNs : std::max<int64_t>(static_cast<int64_t>(real), 1);
}

Code Operation::Resolve(const Target& target, Condition* condition) const {
  const State& state = model.state();
  switch (target.kind) {
    case Target::Kind::kStream: {
      const bool one_entry = target.sequence != UINT64_MAX;
      const Index index = model.Find(Kind::kStream, target.handle, /*also_ending=*/one_entry);
      if (index == 0) return Code::kInvalidHandle;
      const StreamRecord& stream = state.streams[index];
      const uint64_t limit = std::min(target.sequence, stream.submitted);
      *condition = {Condition::Kind::kSequence, index, stream.slot.generation, limit};
      OwnedBy(stream.context, condition);
      return Code::kOk;
    }
    case Target::Kind::kRoom: {
      const Index index = model.Find(Kind::kStream, target.handle);
      if (index == 0) return Code::kInvalidHandle;
      if (target.sequence > Machine::kQueueDepth) return Code::kInvalidValue;
      const StreamRecord& stream = state.streams[index];
      const uint64_t wanted = stream.submitted + target.sequence;
      const uint64_t limit = wanted > Machine::kQueueDepth ? wanted - Machine::kQueueDepth : 0;
      *condition = {Condition::Kind::kRoom, index, stream.slot.generation, limit};
      OwnedBy(stream.context, condition);
      return Code::kOk;
    }
    case Target::Kind::kEvent: {
      const Index index = model.Find(Kind::kEvent, target.handle);
      if (index == 0) return Code::kInvalidHandle;
      const EventRecord& event = state.events[index];
      *condition = {Condition::Kind::kSequence, event.stream, event.stream_generation,
                    event.sequence};
      if (event.records == 0 || event.complete) {
        condition->reached = true;
        condition->visible_ticket = event.visible_ticket;
      }
      // Its tickets are the recorder's, and so is the word that is bumped when they are reached.
      condition->process = event.recorder;
      condition->process_generation = event.recorder_generation;
      return Code::kOk;
    }
    case Target::Kind::kContext:
      break;
  }
  const Index index = model.Find(Kind::kContext, target.handle);
  if (index == 0) return Code::kInvalidHandle;
  const ContextRecord& context = state.contexts[index];
  *condition = {Condition::Kind::kContext, index, context.slot.generation, context.next_ticket};
  OwnedBy(index, condition);
  return Code::kOk;
}

void Operation::OwnedBy(Index context, Condition* condition) const {
  condition->process = model.state().contexts[context].process;
  condition->process_generation = model.state().processes[condition->process].slot.generation;
}

Code Machine::QueryStream(Handle stream, uint64_t sequence) {
  return Query({Target::Kind::kStream, stream, sequence});
}
Code Machine::QueryStream(Handle stream) {
  return Query({Target::Kind::kStream, stream, UINT64_MAX});
}
Code Machine::QueryEvent(Handle event) { return Query({Target::Kind::kEvent, event, 0}); }
Code Machine::QueryContext(Handle context) { return Query({Target::Kind::kContext, context, 0}); }
Code Machine::WaitStream(Handle stream, uint64_t sequence, int64_t deadline_ns) {
  return Wait({Target::Kind::kStream, stream, sequence}, deadline_ns);
}
Code Machine::WaitStream(Handle stream) {
  return Wait({Target::Kind::kStream, stream, UINT64_MAX}, kForever);
}
Code Machine::WaitEvent(Handle event, int64_t deadline_ns) {
  return Wait({Target::Kind::kEvent, event, 0}, deadline_ns);
}
Code Machine::WaitContext(Handle context, int64_t deadline_ns) {
  return Wait({Target::Kind::kContext, context, 0}, deadline_ns);
}
Code Machine::WaitForRoom(Handle stream, uint32_t entries, int64_t deadline_ns) {
  return Wait({Target::Kind::kRoom, stream, entries}, deadline_ns);
}

// --- The executor -------------------------------------------------------------------------------

Answer<Action> Machine::NextAction(Handle handle, int64_t deadline_ns) {
  for (;;) {
    std::atomic<uint32_t>* word = nullptr;
    uint32_t seen = 0;
    int64_t sleep_ns = 0;
    {
      Operation op(this);
      if (executor_shutdown_.load()) return std::unexpected(Code::kShutdown);
      const Index process = op.model.Find(Kind::kProcess, handle);
      if (process == 0) return std::unexpected(Code::kInvalidHandle);
      Action action;
      if (op.model.TakeAction(process, &action)) return action;
      if (op.now_ns >= deadline_ns) return std::unexpected(Code::kTimedOut);
      op.model.Settle();
      const int64_t next_ns = op.model.NextEventNs();
      const int64_t wake_ns =
          std::min(std::max(next_ns, op.model.EarliestActionNs(process)), deadline_ns);
      if (virtual_clock_ != nullptr) {
        if (wake_ns == kForever) return std::unexpected(Code::kStuck);
        virtual_clock_->AdvanceTo(std::min(next_ns, deadline_ns));
        continue;
      }
      word = &attachment_->state()->executor_word[process];
      seen = word->load();
      const bool idle = op.model.state().processes[process].pending_actions == 0;
      // Nothing to run will come but from this very process, whose Submit wakes.
      sleep_ns = idle && deadline_ns == kForever ? kForever : op.RealSleepNs(wake_ns);
    }
    FutexWait(word, seen, sleep_ns);
  }
}

Code Machine::CompleteAction(const Action& action) {
  Operation op(this);
  return op.model.CompleteAction(action);
}

Code Machine::DeferAction(const Action& action) {
  Operation op(this);
  return op.model.DeferAction(action);
}

void Machine::WakeExecutor(bool shutdown) {
  executor_shutdown_.store(shutdown);
  if (!attachment_->shared() || process_ == 0) return;
  auto* word = &attachment_->state()->executor_word[process_ & 0x0fffffff];
  word->fetch_add(1);
  FutexWakeAll(word);
}

}  // namespace prorata::simgpu
