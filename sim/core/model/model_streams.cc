#include <algorithm>

#include "sim/core/model/model.h"
#include "sim/core/model/model_lists.h"

namespace prorata::simgpu {

namespace {

// 104 days; sums over a queue stay far from overflowing.
constexpr int64_t kMaxDurationNs = int64_t{1} << 53;

bool UsesEngine(WorkKind kind) {
  return kind == WorkKind::kKernel || kind == WorkKind::kCopyOnDevice;
}
bool UsesCopyEngine(WorkKind kind) {
  return kind == WorkKind::kCopyToDevice || kind == WorkKind::kCopyToHost ||
         kind == WorkKind::kCopyToPeer;
}

int64_t TransferNs(uint64_t bytes, uint64_t bytes_per_s) {
  const double ns = static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_s);
  return static_cast<int64_t>(ns) + 1;
}

}  // namespace

// --- Submitting ---------------------------------------------------------------------------------

bool Model::ValidWork(Index stream, const Work& work) const {
  switch (work.kind) {
    case WorkKind::kKernel:
      return work.duration_ns >= 0 && work.duration_ns < kMaxDurationNs && work.sm_ppm > 0 &&
             work.sm_ppm <= 1'000'000 && (work.rendezvous == 0 || work.rendezvous_size > 0);
    case WorkKind::kCopyToDevice:
    case WorkKind::kCopyToHost:
    case WorkKind::kCopyOnDevice:
      return work.bytes < uint64_t{1} << 50;
    case WorkKind::kCopyToPeer: {
      const auto known = [&](int device) {
        return device >= 0 && device < static_cast<int>(config_->devices.size());
      };
      return work.bytes < uint64_t{1} << 50 && known(work.from_device) && known(work.to_device) &&
             work.from_device != work.to_device;
    }
    case WorkKind::kHost:
    case WorkKind::kStreamWait:
      return true;
    case WorkKind::kEventRecord: {
      // As in CUDA, an event is recorded in streams of its own context, or of one that opened it.
      const Index event = Find(Kind::kEvent, work.event);
      return event != 0 && MayRecord(event, state().streams[stream].context);
    }
    case WorkKind::kEventWait:
      return Find(Kind::kEvent, work.event) != 0;
  }
  return false;
}

Answer<uint64_t> Model::Submit(Index index, std::span<const Work> work) {
  const StreamRecord& stream = state().streams[index];
  if (work.empty()) return stream.submitted;
  for (const Work& entry : work) {
    if (!ValidWork(index, entry)) return std::unexpected(Code::kInvalidValue);
  }
  if (state().items_in_use + work.size() > kMaxItems) {
    return std::unexpected(Code::kOutOfResources);
  }
  const ContextRecord& context = state().contexts[stream.context];
  uint32_t actions = 0;
  uint64_t sequence = stream.submitted;
  for (const Work& entry : work) {
    const FreeList& free_list = state().free_items;
    const Index item = free_list.head != 0 ? free_list.head : free_list.highest + 1;
    FreeList& changed = tx_.Mut(free_list);
    if (changed.head != 0) {
      changed.head = state().items[item].next;
    } else {
      changed.highest = item;
    }
    ItemRecord& record = tx_.Mut(state().items[item]);
    record = {};
    FillItem(&record, index, ++sequence, entry);
    if (entry.token != 0) ++actions;
    LinkItem(stream, item);
  }
  tx_.Mut(state().items_in_use) += static_cast<uint32_t>(work.size());
  StreamRecord& changed = tx_.Mut(stream);
  changed.queued += static_cast<uint32_t>(work.size());
  changed.submitted = sequence;
  if (actions != 0) {
    // Behind another action of the stream nothing is due sooner than the executor reckons with.
    if (changed.tokens == 0) wake_executors_.push_back(context.process);
    changed.tokens += actions;
    tx_.Mut(state().processes[context.process].pending_actions) += actions;
  }
  if (stream.place == Place::kNone) MarkDirty(index);
  return sequence;
}

// Puts the item at the end of the stream.
void Model::LinkItem(const StreamRecord& stream, Index item) {
  if (stream.items.head != 0 && config_->Broken(Rule::kStreamInOrder)) {
    // Behind the head, which may have begun, and before all others.
    tx_.Mut(state().items[item].next) = state().items[stream.items.head].next;
    tx_.Mut(state().items[stream.items.head].next) = item;
    if (stream.items.tail == stream.items.head) tx_.Mut(stream.items.tail) = item;
    return;
  }
  if (stream.items.tail != 0) {
    tx_.Mut(state().items[stream.items.tail].next) = item;
  } else {
    tx_.Mut(stream.items.head) = item;
  }
  tx_.Mut(stream.items.tail) = item;
}

void Model::FillItem(ItemRecord* item, Index index, uint64_t sequence, const Work& work) {
  const StreamRecord& stream = state().streams[index];
  const ContextRecord& context = state().contexts[stream.context];
  const DeviceConfig& device = device_config(static_cast<int>(context.device));
  item->kind = work.kind;
  item->token = work.token;
  item->ticket = tx_.Mut(context.next_ticket)++;
  item->not_before_ns = now() + device.launch_latency_ns;
  // A kernel never fills more than its stream's part.
  item->sm_ppm = std::min(work.sm_ppm, PartPpm(static_cast<int>(context.device), stream.sms));
  item->duration_ns = work.kind == WorkKind::kKernel ? work.duration_ns : 0;
  item->rendezvous = work.kind == WorkKind::kKernel ? work.rendezvous : 0;
  item->rendezvous_size = work.rendezvous_size;
  item->copy_device = static_cast<uint8_t>(context.device);
  if (work.kind == WorkKind::kCopyToDevice) {
    item->duration_ns = TransferNs(work.bytes, device.h2d_bytes_per_s);
  } else if (work.kind == WorkKind::kCopyToHost) {
    item->duration_ns = TransferNs(work.bytes, device.d2h_bytes_per_s);
    item->copy_engine = 1;
  } else if (work.kind == WorkKind::kCopyToPeer) {
    // Over PCIe it takes the way that also leads to the host, and what that carries meanwhile
    // waits.
    const LinkConfig& link = config_->LinkBetween(work.from_device, work.to_device);
    item->duration_ns =
        TransferNs(work.bytes, config_->BytesPerSecond(work.from_device, work.to_device));
    item->copy_device = static_cast<uint8_t>(work.from_device);
    item->copy_engine = link.type == LinkType::kNvlink ? 2 : 1;
  } else if (work.kind == WorkKind::kCopyOnDevice) {
    item->duration_ns = TransferNs(work.bytes, device.d2d_bytes_per_s);
    // Bound by memory, so nothing gains from running beside it.
    item->sm_ppm = PartPpm(static_cast<int>(context.device), stream.sms);
  } else if (work.kind == WorkKind::kEventRecord) {
    item->event = Find(Kind::kEvent, work.event);
    EventRecord& event = tx_.Mut(state().events[item->event]);
    item->event_generation = event.slot.generation;
    if (event.records != 0 && config_->Broken(Rule::kNewRecordReplaces)) return;
    item->record = ++event.records;
    event.complete = false;
    event.stream = index;
    event.stream_generation = stream.slot.generation;
    event.sequence = sequence;
    event.visible_ticket = 0;  // that of the last record was another process's, perhaps
    event.recorder = context.process;
    event.recorder_generation = state().processes[context.process].slot.generation;
  } else if (work.kind == WorkKind::kEventWait) {
    item->event = Find(Kind::kEvent, work.event);
    const EventRecord& event = state().events[item->event];
    item->event_generation = event.slot.generation;
    if (event.records != 0 && !event.complete && !config_->Broken(Rule::kEventWaitHolds)) {
      item->after_stream = event.stream;
      item->after_generation = event.stream_generation;
      item->after_sequence = event.sequence;
    }
    if (event.records != 0 && event.recorder != context.process) {
      item->after_process = event.recorder;
      item->after_process_generation = event.recorder_generation;
      item->after_ticket = event.complete ? event.visible_ticket : 0;
    }
  } else if (work.kind == WorkKind::kStreamWait) {
    item->after_stream = Find(Kind::kStream, work.stream, /*also_ending=*/true);
    item->after_generation = state().streams[item->after_stream].slot.generation;
    item->after_sequence = work.sequence;
  }
}

// --- Moving heads -------------------------------------------------------------------------------

void Model::MarkDirty(Index index) {
  const StreamRecord& stream = state().streams[index];
  if (stream.dirty) return;
  tx_.Mut(stream.dirty) = true;
  DirtyList::Append(tx_, state().dirty, index);
}

void Model::UnmarkDirty(Index index) {
  const StreamRecord& stream = state().streams[index];
  if (!stream.dirty) return;
  DirtyList::Remove(tx_, state().dirty, index);
  tx_.Mut(stream.dirty) = false;
}

bool Model::StreamPassed(Index index, uint32_t generation, uint64_t sequence) const {
  const StreamRecord& stream = state().streams[index];
  return stream.slot.generation != generation || stream.slot.life == Life::kFree ||
         stream.completed >= sequence;
}

// A stream that the head must wait for, 0 when it may go.
//   A: a wait for an event or a stream: the stream of the record, until it has passed it.
//   B: in the legacy stream: any blocking stream of the context with older work.
//   C: in a blocking stream: the legacy stream, while it has older work.
// B and C hold within a part of the context (StreamPart::legacy), and within what is in none.
Index Model::Blocker(Index index, const ItemRecord& item) const {
  if (item.after_process != 0 && config_->Broken(Rule::kIpcEventOrders)) return 0;
  if (item.after_stream != 0 &&
      !StreamPassed(item.after_stream, item.after_generation, item.after_sequence)) {
    return item.after_stream;
  }
  if (item.kind == WorkKind::kEventWait && config_->Broken(Rule::kWaitUsesItsRecord)) {
    const EventRecord& event = state().events[item.event];
    const bool waits = event.slot.generation == item.event_generation && event.records != 0 &&
                       !StreamPassed(event.stream, event.stream_generation, event.sequence);
    if (waits) return event.stream;
  }
  const StreamRecord& stream = state().streams[index];
  const ContextRecord& context = state().contexts[stream.context];
  // What the legacy stream and it wait for.
  const auto ordered = [&](const StreamRecord& other) {
    return other.kind == StreamKind::kBlocking ||
           (other.kind == StreamKind::kNonBlocking && config_->Broken(Rule::kNonBlockingIsFree));
  };
  const auto has_older = [&](Index other) {
    const Index head = state().streams[other].items.head;
    return head != 0 && state().items[head].ticket < item.ticket;
  };
  if (ordered(stream) && !config_->Broken(Rule::kBlockingWaitsForLegacy)) {
    Index legacy = context.legacy_stream;
    if (stream.group != 0) {
      const bool there = state().streams[stream.group].slot.generation == stream.group_generation;
      legacy = there ? stream.group : 0;
    }
    return legacy != 0 && has_older(legacy) ? legacy : 0;
  }
  if (stream.kind == StreamKind::kLegacy && !config_->Broken(Rule::kLegacyWaitsForBlocking)) {
    for (Index other = context.streams.head; other != 0;
         other = ContextStreams::Next(state(), other)) {
      const StreamRecord& beside = state().streams[other];
      const bool together =
          beside.group == stream.group && beside.group_generation == stream.group_generation;
      if (together && ordered(beside) && has_older(other)) return other;
    }
  }
  return 0;
}

void Model::Pump(Index index) {
  const StreamRecord& stream = state().streams[index];
  UnmarkDirty(index);
  if (stream.place != Place::kNone) return;
  if (state().contexts[stream.context].slot.life != Life::kLive) return;
  const Index head = stream.items.head;
  if (head == 0) {
    if (stream.slot.life == Life::kEnding && stream.left_count == 0) FreeStream(index);
    return;
  }
  const ItemRecord& item = state().items[head];
  if (item.not_before_ns > now()) {
    Delay(index, item.not_before_ns);
  } else if (const Index blocker = Blocker(index, item)) {
    Block(index, blocker);
  } else if (HeldUp(head)) {
    TicketWaiters::Append(tx_, state().processes[item.after_process].ticket_waiters, index);
    StreamRecord& held = tx_.Mut(stream);
    held.place = Place::kHeldUp;
    held.blocked_on = item.after_process;
    // Its process is to say when they have run.
    const uint64_t& wanted = state().processes[item.after_process].wanted_ticket;
    if (wanted == 0 || wanted > item.after_ticket) tx_.Mut(wanted) = item.after_ticket;
  } else {
    Start(index, item);
  }
}

void Model::Start(Index index, const ItemRecord& item) {
  if (UsesEngine(item.kind)) {
    EnqueueKernel(index);
  } else if (UsesCopyEngine(item.kind)) {
    const int which = item.copy_engine;
    const int device = item.copy_device;
    const CopyEngine& engine = state().devices[device].copy[which];
    StreamRecord& stream = tx_.Mut(state().streams[index]);
    stream.place = Place::kCopying;
    stream.copy_device = item.copy_device;
    stream.copy_engine = item.copy_engine;
    PlaceList::Append(tx_, engine.queue, index);
    if (engine.queue.head == index) StartCopy(device, which);
  } else {
    if (item.kind == WorkKind::kEventRecord) CompleteEvent(item);
    FinishEngine(index);
  }
}

void Model::EnqueueKernel(Index index) {
  const StreamRecord& stream = state().streams[index];
  const ContextRecord& context = state().contexts[stream.context];
  Index before = 0;
  for (Index other = context.ready.tail;
       other != 0 && state().streams[other].priority > stream.priority &&
       !config_->Broken(Rule::kPriorityGoesFirst);
       other = PlaceList::Prev(state(), other)) {
    before = other;
  }
  PlaceList::InsertBefore(tx_, context.ready, before, index);
  tx_.Mut(stream.place) = Place::kReady;
  JoinRing(stream.context);
}

void Model::Delay(Index index, int64_t not_before_ns) {
  StreamRecord& stream = tx_.Mut(state().streams[index]);
  stream.finish_ns = not_before_ns;
  stream.place = Place::kDelayed;
  Index before = 0;
  for (Index other = state().delayed.tail;
       other != 0 && state().streams[other].finish_ns > not_before_ns;
       other = PlaceList::Prev(state(), other)) {
    before = other;
  }
  PlaceList::InsertBefore(tx_, state().delayed, before, index);
}

void Model::Block(Index index, Index on) {
  StreamRecord& stream = tx_.Mut(state().streams[index]);
  stream.place = Place::kBlocked;
  stream.blocked_on = on;
  WaiterList::Append(tx_, state().streams[on].waiters, index);
}

void Model::WakeWaiters(Index index) {
  const Index process = state().contexts[state().streams[index].context].process;
  while (const Index waiter = state().streams[index].waiters.head) Unblock(waiter, process);
}

// Whoever sleeps over the waiter in another process could not foresee what `process` has done.
void Model::Unblock(Index waiter, Index process) {
  Unplace(waiter);
  MarkDirty(waiter);
  const Index sleeper = state().contexts[state().streams[waiter].context].process;
  if (sleeper == process) return;
  wake_waiters_.push_back(sleeper);
  wake_executors_.push_back(sleeper);
}

// An event wait whose record another process made, and has been passed on the device: what the
// functions of that process's kernels write is there only once its executor has run them. Within
// one process the order of its actions sees to this.
bool Model::HeldUp(Index head) {
  const ItemRecord& item = state().items[head];
  if (item.kind != WorkKind::kEventWait || item.after_process == 0) return false;
  if (config_->Broken(Rule::kIpcEventOrders)) return false;
  const ProcessRecord& process = state().processes[item.after_process];
  if (process.slot.generation != item.after_process_generation) return false;
  if (item.after_ticket == 0) tx_.Mut(item.after_ticket) = process.left_tickets;
  return process.ran_tickets < item.after_ticket;
}

// All of them, since they want different tickets: those that came too early wait again.
void Model::WakeTicketWaiters(Index process) {
  while (const Index waiter = state().processes[process].ticket_waiters.head) {
    Unblock(waiter, process);
  }
}

// Takes a stream out of the list that its place means.
void Model::Unplace(Index index) {
  const StreamRecord& stream = state().streams[index];
  const ContextRecord& context = state().contexts[stream.context];
  switch (stream.place) {
    case Place::kNone:
      break;
    case Place::kDelayed:
      PlaceList::Remove(tx_, state().delayed, index);
      break;
    case Place::kBlocked:
      WaiterList::Remove(tx_, state().streams[stream.blocked_on].waiters, index);
      tx_.Mut(stream.blocked_on) = 0;
      break;
    case Place::kHeldUp:
      TicketWaiters::Remove(tx_, state().processes[stream.blocked_on].ticket_waiters, index);
      tx_.Mut(stream.blocked_on) = 0;
      break;
    case Place::kReady:
      PlaceList::Remove(tx_, context.ready, index);
      break;
    case Place::kRunning:
      PlaceList::Remove(tx_, context.running, index);
      tx_.Mut(context.running_ppm) -= state().items[stream.items.head].sm_ppm;
      break;
    case Place::kCopying: {
      const CopyEngine& engine = state().devices[stream.copy_device].copy[stream.copy_engine];
      const bool in_progress = engine.queue.head == index;
      PlaceList::Remove(tx_, engine.queue, index);
      if (in_progress) StartCopy(stream.copy_device, stream.copy_engine);
      break;
    }
    case Place::kAction:
      RemoveAction(context.process, stream.items.head);
      break;
    case Place::kActionTaken:
      // A deferred one is in no list.
      if (state().processes[context.process].taken == stream.items.head) {
        RemoveAction(context.process, stream.items.head);
      }
      break;
  }
  tx_.Mut(stream.place) = Place::kNone;
}

void Model::CompleteEvent(const ItemRecord& item) {
  const EventRecord& event = state().events[item.event];
  if (event.slot.generation != item.event_generation) return;
  if (event.records != item.record && !config_->Broken(Rule::kOldRecordIsOver)) return;
  EventRecord& changed = tx_.Mut(event);
  changed.complete = true;
  changed.time_ns = now();
  changed.visible_ticket = state().processes[event.recorder].left_tickets;
}

void Model::Complete(Index index) {
  ReleaseItem(state().contexts[state().streams[index].context].process, UnlinkHead(index));
  Passed(index);
}

// One more entry is done on the device.
void Model::Passed(Index index) {
  const StreamRecord& stream = state().streams[index];
  const Index process = state().contexts[stream.context].process;
  tx_.Mut(stream.completed) += 1;
  tx_.Mut(stream.visible_ticket) = state().processes[process].left_tickets;
  MarkDirty(index);
  WakeWaiters(index);
}

Index Model::UnlinkHead(Index index) {
  const StreamRecord& stream = state().streams[index];
  const Index item = stream.items.head;
  StreamRecord& changed = tx_.Mut(stream);
  changed.items.head = state().items[item].next;
  if (changed.items.head == 0) changed.items.tail = 0;
  changed.queued -= 1;
  if (state().items[item].token != 0) changed.tokens -= 1;
  return item;
}

void Model::ReleaseItem(Index process, Index item) {
  if (state().items[item].token != 0) tx_.Mut(state().processes[process].pending_actions) -= 1;
  tx_.Mut(state().items[item].next) = state().free_items.head;
  tx_.Mut(state().free_items.head) = item;
  tx_.Mut(state().items_in_use) -= 1;
}

}  // namespace prorata::simgpu
