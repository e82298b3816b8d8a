#include <algorithm>

#include "sim/core/model/model.h"
#include "sim/core/model/model_lists.h"

// Making objects and taking them apart. What is made is one transaction. Taking apart a context or
// a process goes in steps, each of which leaves a state from which the rest can be done by anybody:
// the record stays in kEnding until nothing hangs on it.

namespace prorata::simgpu {

const Slot& Model::SlotOf(Kind kind, Index index) const {
  switch (kind) {
    case Kind::kProcess:
      return state().processes[index].slot;
    case Kind::kContext:
      return state().contexts[index].slot;
    case Kind::kStream:
      return state().streams[index].slot;
    case Kind::kEvent:
      return state().events[index].slot;
    case Kind::kBlock:
      return state().blocks[index].slot;
    case Kind::kShare:
      return state().shares[index].slot;
    case Kind::kExport:
      break;
  }
  return state().exports[index].slot;
}

Index Model::Find(Kind kind, Handle handle, bool also_ending) const {
  const auto index = static_cast<Index>(handle & 0x0fffffff);
  constexpr Index kLimits[] = {0,          kMaxProcesses, kMaxContexts, kMaxStreams,
                               kMaxEvents, kMaxBlocks,    kMaxShares,   kMaxExports};
  const Index limit = kLimits[static_cast<size_t>(kind)];
  if ((handle >> 28 & 0xf) != static_cast<uint64_t>(kind) || index == 0 || index > limit) return 0;
  const Slot& slot = SlotOf(kind, index);
  if (slot.generation != handle >> 32 || slot.life == Life::kFree) return 0;
  if (slot.life == Life::kEnding && !also_ending) return 0;
  // Streams and events of a context that is being taken apart are gone, but for events that others
  // have opened: one of those will get it, and none may miss it until then.
  Index context = 0;
  if (kind == Kind::kStream) context = state().streams[index].context;
  if (kind == Kind::kEvent && state().events[index].shares.head == 0) {
    context = state().events[index].context;
  }
  if (context != 0 && state().contexts[context].slot.life != Life::kLive) return 0;
  return index;
}

Handle Model::HandleOf(Kind kind, Index index) const {
  return MakeHandle(kind, index, SlotOf(kind, index).generation);
}

// A free record, alive and with its next generation; the caller fills in the rest. 0 when full.
Index Model::Take(const FreeList& list, Index limit, Kind kind) {
  if (list.head == 0 && list.highest == limit) return 0;
  FreeList& changed = tx_.Mut(list);
  const Index index = changed.head != 0 ? changed.head : ++changed.highest;
  Slot& slot = tx_.Mut(SlotOf(kind, index));
  if (changed.head != 0) changed.head = slot.next_free;
  slot.next_free = 0;
  slot.life = Life::kLive;
  return index;
}

void Model::GiveBack(const FreeList& list, Kind kind, Index index) {
  Slot& slot = tx_.Mut(SlotOf(kind, index));
  slot.life = Life::kFree;
  slot.generation += 1;
  slot.next_free = list.head;
  tx_.Mut(list).head = index;
}

// Processes sit in the slot whose record lock they hold, so they have no free list of their own.
Answer<Index> Model::AddProcess(Index slot, int32_t pid, uint64_t pid_namespace, uint64_t image) {
  if (slot == 0 || slot > kMaxProcesses) return std::unexpected(Code::kOutOfResources);
  if (state().processes[slot].slot.life != Life::kFree) {
    return std::unexpected(Code::kOutOfResources);
  }
  ProcessRecord& process = tx_.Mut(state().processes[slot]);
  const uint32_t generation = process.slot.generation;
  process = {};
  process.slot.generation = generation;
  process.slot.life = Life::kLive;
  process.pid = pid;
  process.pid_namespace = pid_namespace;
  process.image = image;
  process.begun_ns = now();
  if (state().free_processes.highest < slot) tx_.Mut(state().free_processes.highest) = slot;
  return slot;
}

void Model::EndProcess(Index index, const Wipe& wipe) {
  const ProcessRecord& process = state().processes[index];
  if (process.slot.life == Life::kFree) return;
  tx_.Mut(process.slot.life) = Life::kEnding;
  tx_.Commit();
  while (const Index context = process.contexts.head) {
    BeginEndContext(context);
    tx_.Commit();
    EndContext(context, wipe);
  }
  while (const Index share = process.shares.head) {
    DropShare(share);
    tx_.Commit();
  }
  while (const Index made = process.exports.head) {
    DropExport(made);
    tx_.Commit();
  }
  for (size_t device = 0; process.scrubbing != 0 && device < config_->devices.size(); ++device) {
    ReleaseOwner(static_cast<int>(device), kScrubbing | index, wipe);
  }
  Slot& slot = tx_.Mut(process.slot);
  slot.life = Life::kFree;
  slot.generation += 1;
  tx_.Commit();
}

Answer<Index> Model::AddContext(Index process, int device) {
  const uint64_t bytes = device_config(device).context_bytes;
  if (Memory(device).free_bytes < bytes) return std::unexpected(Code::kOutOfMemory);
  const Index index = Take(state().free_contexts, kMaxContexts, Kind::kContext);
  if (index == 0) return std::unexpected(Code::kOutOfResources);
  ContextRecord& context = tx_.Mut(state().contexts[index]);
  const Slot slot = context.slot;
  context = {};
  context.slot = slot;
  context.process = process;
  context.device = static_cast<uint32_t>(device);
  ProcessContexts::Append(tx_, state().processes[process].contexts, index);
  tx_.Mut(state().devices[device].context_bytes) += bytes;
  return index;
}

void Model::BeginEndContext(Index index) {
  const ContextRecord& context = state().contexts[index];
  tx_.Mut(context.slot.life) = Life::kEnding;
  LeaveRing(index);
  const DeviceRecord& device = state().devices[context.device];
  // Nobody else's state is on the engine then; the next one pays no more than the first did.
  if (device.last_context == index) tx_.Mut(device.last_context) = 0;
  WakeEverybody();
}

// Somebody's going may let others run sooner than they reckoned when they went to sleep.
void Model::WakeEverybody() {
  for (Index process = 1; process <= state().free_processes.highest; ++process) {
    if (state().processes[process].slot.life == Life::kFree) continue;
    wake_waiters_.push_back(process);
    wake_executors_.push_back(process);
  }
}

void Model::EndContext(Index index, const Wipe& wipe) {
  const ContextRecord& context = state().contexts[index];
  while (const Index stream = context.streams.head) DismantleStream(stream);
  EndContextShares(index);
  while (const Index event = context.events.head) {
    RemoveEvent(event);
    tx_.Commit();
  }
  if (context.slabs != 0) ReleaseOwner(static_cast<int>(context.device), index, wipe);
  const int device = static_cast<int>(context.device);
  tx_.Mut(state().devices[device].context_bytes) -= device_config(device).context_bytes;
  ProcessContexts::Remove(tx_, state().processes[context.process].contexts, index);
  GiveBack(state().free_contexts, Kind::kContext, index);
  tx_.Commit();
  WakeEverybody();
}

// What it holds together with others; of a process that lives, with nothing left to wipe.
void Model::EndContextShares(Index context) {
  const Index process = state().contexts[context].process;
  Index next = 0;
  for (Index share = state().processes[process].shares.head; share != 0; share = next) {
    next = ProcessShares::Next(state(), share);
    if (state().shares[share].context != context) continue;
    if (state().shares[share].of_event) {
      DropEventShare(share);
    } else {
      DropShare(share);
    }
    tx_.Commit();
  }
}

Answer<Index> Model::AddStream(Index context, StreamKind kind, int priority,
                               const StreamPart& part) {
  const bool confined = !part.sms.all();
  const bool first_of_context = kind == StreamKind::kLegacy && !confined;
  if (first_of_context && state().contexts[context].legacy_stream != 0) {
    return std::unexpected(Code::kInvalidValue);
  }
  const uint32_t sm_count =
      device_config(static_cast<int>(state().contexts[context].device)).sm_count;
  if (confined && sm_count < SmSet::kMax && !SmSet::Range(0, sm_count).Contains(part.sms)) {
    return std::unexpected(Code::kInvalidValue);
  }
  const Index group = part.legacy != 0 ? Find(Kind::kStream, part.legacy) : 0;
  if (part.legacy != 0 &&
      (group == 0 || !confined || state().streams[group].group != group ||
       state().streams[group].context != context || kind == StreamKind::kLegacy)) {
    return std::unexpected(Code::kInvalidValue);
  }
  const Index index = Take(state().free_streams, kMaxStreams, Kind::kStream);
  if (index == 0) return std::unexpected(Code::kOutOfResources);
  StreamRecord& stream = tx_.Mut(state().streams[index]);
  const Slot slot = stream.slot;
  stream = {};
  stream.slot = slot;
  stream.kind = kind;
  stream.priority = priority;
  stream.context = context;
  stream.sms = part.sms;
  stream.group = kind == StreamKind::kLegacy && confined ? index : group;
  stream.group_generation = state().streams[stream.group].slot.generation;
  ContextStreams::Append(tx_, state().contexts[context].streams, index);
  if (first_of_context) tx_.Mut(state().contexts[context].legacy_stream) = index;
  return index;
}

void Model::EndStream(Index index) {
  const StreamRecord& stream = state().streams[index];
  tx_.Mut(stream.slot.life) = Life::kEnding;
  if (stream.place == Place::kNone) MarkDirty(index);
}

// Its queue is empty, it has left nothing behind, and it is in no list but its context's.
void Model::FreeStream(Index index) {
  const StreamRecord& stream = state().streams[index];
  const ContextRecord& context = state().contexts[stream.context];
  WakeWaiters(index);
  ContextRecord& changed = tx_.Mut(context);
  changed.visible_ticket = std::max(changed.visible_ticket, stream.visible_ticket);
  ContextStreams::Remove(tx_, context.streams, index);
  if (context.legacy_stream == index) tx_.Mut(context.legacy_stream) = 0;
  GiveBack(state().free_streams, Kind::kStream, index);
}

// Of a context that is ending: without running what is queued.
void Model::DismantleStream(Index index) {
  const StreamRecord& stream = state().streams[index];
  tx_.Mut(stream.slot.life) = Life::kEnding;
  Unplace(index);
  UnmarkDirty(index);
  tx_.Commit();
  const Index process = state().contexts[stream.context].process;
  while (stream.items.head != 0) {
    ReleaseItem(process, UnlinkHead(index));
    tx_.Commit();
  }
  while (stream.left.head != 0) {
    PopLeft(index);
    tx_.Commit();
  }
  UnmarkDirty(index);
  // Waking others marks them dirty, which the next Settle looks at.
  FreeStream(index);
  tx_.Commit();
}

Answer<Index> Model::AddEvent(Index context) {
  const Index index = Take(state().free_events, kMaxEvents, Kind::kEvent);
  if (index == 0) return std::unexpected(Code::kOutOfResources);
  EventRecord& event = tx_.Mut(state().events[index]);
  const Slot slot = event.slot;
  event = {};
  event.slot = slot;
  event.context = context;
  ContextEvents::Append(tx_, state().contexts[context].events, index);
  return index;
}

void Model::RemoveEvent(Index index) {
  const EventRecord& event = state().events[index];
  ContextEvents::Remove(tx_, state().contexts[event.context].events, index);
  if (const Index share = event.shares.head) {
    // Its handle stays what it was.
    const Index heir = state().shares[share].context;
    DropEventShare(share);
    tx_.Mut(event.context) = heir;
    ContextEvents::Append(tx_, state().contexts[heir].events, index);
    return;
  }
  GiveBack(state().free_events, Kind::kEvent, index);
}

}  // namespace prorata::simgpu
