#include <array>
#include <sstream>

#include "sim/core/model/model.h"
#include "sim/core/model/model_lists.h"

// What must be true after every commit. Slow; for tests.

namespace prorata::simgpu {

namespace {

// The words of a complaint, put together only when there is one: the checks run after every kill.
template <typename... Parts>
auto Text(const Parts&... parts) {
  return [=] {
    std::ostringstream out;
    ((out << parts << ' '), ...);
    return out.str();
  };
}

struct Counts {
  std::string broken;
  template <typename What>
  void Expect(bool condition, const What& what) {
    if (condition || !broken.empty()) return;
    if constexpr (std::is_invocable_v<What>) {
      broken = what();
    } else {
      broken = what;
    }
  }
};

template <typename List, typename Walk>
uint32_t Length(const State& state, const prorata::simgpu::List& list, Counts* counts, Walk walk) {
  uint32_t length = 0;
  Index last = 0;
  for (Index at = list.head; at != 0; at = List::Next(state, at)) {
    counts->Expect(List::Prev(state, at) == last, Text("list broken at", at));
    walk(at);
    last = at;
    if (++length > kMaxEvents) {
      counts->Expect(false, "list runs in a circle");
      break;
    }
  }
  counts->Expect(list.tail == last, "list tail is not its last");
  return length;
}

void CheckSlabs(const Model& model, int index, Counts* counts) {
  const State& state = model.state();
  const DeviceRecord& device = state.devices[index];
  uint32_t used = 0;
  uint32_t scrubbing = 0;
  std::vector<uint32_t> per_context(kMaxContexts + 1);
  std::vector<uint32_t> per_block(kMaxBlocks + 1);
  for (uint32_t slab = 0; slab < device.slab_count; ++slab) {
    const uint32_t owner = model.owners(index)[slab];
    const bool bit = model.used_bits(index)[slab / 64] >> (slab % 64) & 1;
    counts->Expect(bit == (owner != 0), Text("slab", slab, "owner", owner, "bit", bit));
    if ((owner & kScrubbing) != 0) {
      ++scrubbing;
    } else if ((owner & kOfBlock) != 0) {
      ++used;
      ++per_block[owner & ~kOfBlock];
    } else if (owner != 0) {
      ++used;
      ++per_context[owner];
    }
  }
  counts->Expect(used == device.used_slabs,
                 Text("device", index, ":", used, "slabs owned,", device.used_slabs, "counted"));
  counts->Expect(scrubbing == device.scrubbing_slabs, "scrubbing slabs miscounted");
  for (Index context = 1; context <= kMaxContexts; ++context) {
    const ContextRecord& record = state.contexts[context];
    const bool here = record.slot.life != Life::kFree && record.device == uint32_t(index);
    counts->Expect(per_context[context] == (here ? record.slabs : 0),
                   Text("context", context, ":", per_context[context], "slabs owned,", record.slabs,
                        "counted"));
  }
  for (Index block = 1; block <= state.free_blocks.highest; ++block) {
    const BlockRecord& record = state.blocks[block];
    const bool here = record.slot.life != Life::kFree && record.device == uint32_t(index);
    counts->Expect(
        per_block[block] == (here ? record.slabs : 0),
        Text("block", block, ":", per_block[block], "slabs owned,", record.slabs, "counted"));
  }
}

// Records in use of a table that has a free list.
template <typename Record>
uint32_t Live(const Record* records, const FreeList& list) {
  uint32_t live = 0;
  for (Index index = 1; index <= list.highest; ++index) {
    if (records[index].slot.life != Life::kFree) ++live;
  }
  return live;
}

// Blocks, who holds them and on whose account they are; opened events.
void CheckShares(const Model& model, Counts* counts) {
  const State& state = model.state();
  std::vector<std::array<uint32_t, kMaxDevices>> paid(kMaxProcesses + 1);
  uint32_t held = 0;
  uint32_t exports = 0;
  uint32_t descriptors = 0;
  for (Index index = 1; index <= state.free_blocks.highest; ++index) {
    const BlockRecord& block = state.blocks[index];
    if (block.slot.life == Life::kFree) continue;
    held += Length<BlockShares>(state, block.shares, counts, [&](Index share) {
      counts->Expect(state.shares[share].target == index && !state.shares[share].of_event,
                     Text("block", index, ": held by a share of something else"));
    });
    uint32_t found = 0;
    exports += Length<ExportList>(state, block.exports, counts, [&](Index at) {
      counts->Expect(state.exports[at].block == index, "export in the wrong list");
      if (state.exports[at].kind == ExportKind::kDescriptor) ++found;
    });
    counts->Expect(found == block.descriptors, Text("block", index, ": descriptors"));
    counts->Expect(block.shares.head != 0 || found != 0, Text("block", index, "is nobody's"));
    descriptors += found;
    paid[model.PayerOf(index)][block.device] += block.slabs;
  }
  for (Index index = 1; index <= state.free_events.highest; ++index) {
    const EventRecord& event = state.events[index];
    if (event.slot.life == Life::kFree) continue;
    held += Length<EventShares>(state, event.shares, counts, [&](Index share) {
      counts->Expect(state.shares[share].target == index && state.shares[share].of_event,
                     Text("event", index, ": opened by a share of something else"));
    });
  }
  counts->Expect(held == Live(state.shares, state.free_shares), "a share that holds nothing");
  for (Index index = 1; index <= kMaxProcesses; ++index) {
    const ProcessRecord& process = state.processes[index];
    exports += Length<ExportList>(state, process.exports, counts, [&](Index at) {
      counts->Expect(state.exports[at].process == index, "pool's export in the wrong list");
    });
    if (process.slot.life == Life::kFree) {
      counts->Expect(
          process.shares.head == 0 && process.exports.head == 0 && process.ticket_waiters.head == 0,
          Text("process", index, "is gone and holds something"));
    }
    for (uint32_t device = 0; device < kMaxDevices; ++device) {
      counts->Expect(process.block_slabs[device] == paid[index][device],
                     Text("process", index, "pays for", process.block_slabs[device],
                          "slabs and has", paid[index][device]));
    }
    held -= Length<ProcessShares>(state, process.shares, counts, [&](Index share) {
      const ShareRecord& record = state.shares[share];
      counts->Expect(record.process == index, "share in the wrong list");
      counts->Expect(record.context == 0 || state.contexts[record.context].process == index,
                     "share of another process's context");
    });
    Length<TicketWaiters>(state, process.ticket_waiters, counts, [&](Index stream) {
      counts->Expect(state.streams[stream].place == Place::kHeldUp &&
                         state.streams[stream].blocked_on == index,
                     Text("stream", stream, "waits for tickets without its place"));
    });
  }
  counts->Expect(held == 0, "a share in one list only");
  counts->Expect(exports == Live(state.exports, state.free_exports), "an export of nothing");
  counts->Expect(
      Length<DescriptorList>(state, state.descriptors, counts, [](Index) {}) == descriptors,
      "descriptors miscounted");
}

// The kernels that a stream has left behind.
uint32_t CheckLeft(const State& state, Index index, Counts* counts) {
  const StreamRecord& stream = state.streams[index];
  const ProcessRecord& process = state.processes[state.contexts[stream.context].process];
  uint32_t left = 0;
  uint64_t ticket = process.ran_tickets;
  uint64_t sequence = 0;
  Index last = 0;
  for (Index at = stream.left.head; at != 0 && left <= kMaxItems; at = state.items[at].next) {
    const ItemRecord& item = state.items[at];
    counts->Expect(item.left_ticket > ticket && item.left_ticket <= process.left_tickets,
                   Text("stream", index, ": left behind with ticket", item.left_ticket));
    counts->Expect(item.sequence > sequence && item.sequence <= stream.completed,
                   Text("stream", index, ": left behind as entry", item.sequence));
    counts->Expect(item.kind == WorkKind::kKernel && item.token != 0 && item.stream == index,
                   Text("stream", index, ": left behind, but no kernel's action"));
    ticket = item.left_ticket;
    sequence = item.sequence;
    last = at;
    ++left;
  }
  counts->Expect(stream.left.tail == last && left == stream.left_count,
                 Text("stream", index, ":", left, "left behind,", stream.left_count, "counted"));
  counts->Expect(ticket <= stream.visible_ticket || left == 0,
                 Text("stream", index, ": visible before its kernels have run"));
  return left;
}

// The list of a process: `kernels` were found in its streams.
void CheckActions(const State& state, const ProcessRecord& process, uint32_t kernels,
                  Counts* counts) {
  uint32_t found = 0;
  uint64_t ticket = process.ran_tickets;
  Length<ActionList>(state, process.actions, counts, [&](Index index) {
    const ItemRecord& item = state.items[index];
    const StreamRecord& stream = state.streams[item.stream];
    if (item.left_ticket != 0) {
      ++found;
      counts->Expect(item.left_ticket > ticket, "kernels' actions out of order");
      counts->Expect(ticket != process.ran_tickets || item.left_ticket == ticket + 1,
                     "kernels have run without being counted");
      ticket = item.left_ticket;
      return;
    }
    const Place place = index == process.taken ? Place::kActionTaken : Place::kAction;
    counts->Expect(stream.items.head == index && stream.place == place &&
                       item.sequence == stream.completed + 1,
                   Text("action of stream", item.stream, "without its place"));
  });
  counts->Expect(found == kernels, Text(found, "kernels' actions,", kernels, "left behind"));
  counts->Expect(found != 0 || process.ran_tickets == process.left_tickets, "a kernel never ran");
  counts->Expect(process.taken == 0 || process.taken == process.actions.head,
                 "what the executor has is not the oldest");
}

uint32_t CheckStream(const State& state, Index index, Counts* counts) {
  const StreamRecord& stream = state.streams[index];
  uint32_t items = 0;
  uint64_t ticket = 0;
  Index last = 0;
  uint32_t tokens = 0;
  for (Index item = stream.items.head; item != 0 && items <= kMaxItems;
       item = state.items[item].next) {
    if (state.items[item].token != 0) ++tokens;
    counts->Expect(state.items[item].ticket > ticket, "stream out of order");
    ticket = state.items[item].ticket;
    last = item;
    ++items;
  }
  counts->Expect(stream.items.tail == last, Text("stream", index, ": tail"));
  counts->Expect(items == stream.queued, Text("stream", index, ": queued"));
  counts->Expect(tokens == stream.tokens, Text("stream", index, ": tokens"));
  counts->Expect(stream.slot.life != Life::kFree, Text("stream", index, ": gone but in a list"));
  // A context that is ending drops entries without completing them.
  counts->Expect(state.contexts[stream.context].slot.life == Life::kEnding ||
                     stream.submitted - stream.completed == items,
                 Text("stream", index, ":", stream.submitted, "submitted,", stream.completed,
                      "completed,", items, "queued"));
  counts->Expect((stream.place == Place::kBlocked || stream.place == Place::kHeldUp) ==
                     (stream.blocked_on != 0),
                 Text("stream", index, ": blocked on", stream.blocked_on));
  return items;
}

// What runs on a part of the SMs is no more than fits there.
void CheckParts(const State& s, const ContextRecord& context, uint32_t sm_count, Counts* counts) {
  for (Index stream = context.running.head; stream != 0; stream = PlaceList::Next(s, stream)) {
    const SmSet& part = s.streams[stream].sms;
    if (part.all()) continue;
    uint64_t ppm = 0;
    for (Index other = context.running.head; other != 0; other = PlaceList::Next(s, other)) {
      const SmSet& sms = s.streams[other].sms;
      if (!sms.all() && part.Contains(sms)) ppm += s.items[s.streams[other].items.head].sm_ppm;
    }
    counts->Expect(ppm <= std::max<uint64_t>(uint64_t{1'000'000} * part.count() / sm_count, 1),
                   Text("stream", stream, ": its part is overfull"));
  }
}

}  // namespace

std::string Model::CheckInvariants() const {
  Counts counts;
  const State& s = state();
  uint32_t items = 0;
  std::vector<uint64_t> context_bytes(kMaxDevices);
  for (Index process = 1; process <= kMaxProcesses; ++process) {
    const ProcessRecord& record = s.processes[process];
    if (record.slot.life == Life::kFree) continue;
    uint32_t actions = 0;
    uint32_t kernels = 0;
    Length<ProcessContexts>(s, record.contexts, &counts, [&](Index index) {
      const ContextRecord& context = s.contexts[index];
      counts.Expect(context.process == process, "context in the wrong list");
      context_bytes[context.device] += config_->devices[context.device].context_bytes;
      Length<ContextStreams>(s, context.streams, &counts, [&](Index stream) {
        items += CheckStream(s, stream, &counts);
        kernels += CheckLeft(s, stream, &counts);
        counts.Expect(s.streams[stream].visible_ticket <= record.left_tickets,
                      Text("stream", stream, ": waits for kernels that never were"));
        for (Index item = s.streams[stream].items.head; item != 0; item = s.items[item].next) {
          if (s.items[item].token != 0) ++actions;
        }
      });
      Length<ContextEvents>(s, context.events, &counts, [&](Index event) {
        const ProcessRecord& recorder = s.processes[s.events[event].recorder];
        counts.Expect(s.events[event].visible_ticket <= recorder.left_tickets ||
                          recorder.slot.generation != s.events[event].recorder_generation,
                      Text("event", event, ": waits for kernels that never were"));
      });
      uint32_t ppm = 0;
      Length<PlaceList>(s, context.running, &counts, [&](Index stream) {
        counts.Expect(s.streams[stream].place == Place::kRunning, "running without its place");
        ppm += s.items[s.streams[stream].items.head].sm_ppm;
      });
      counts.Expect(ppm == context.running_ppm && ppm <= 1'000'000, "running_ppm");
      CheckParts(s, context, device_config(static_cast<int>(context.device)).sm_count, &counts);
      Length<PlaceList>(s, context.ready, &counts, [&](Index stream) {
        counts.Expect(s.streams[stream].place == Place::kReady, "ready without its place");
      });
    });
    items += kernels;
    actions += kernels;
    counts.Expect(
        actions == record.pending_actions,
        Text("process", process, ":", actions, "actions,", record.pending_actions, "counted"));
    CheckActions(s, record, kernels, &counts);
  }
  CheckShares(*this, &counts);
  counts.Expect(items == s.items_in_use, Text(items, "entries queued,", s.items_in_use, "counted"));
  Length<DirtyList>(s, s.dirty, &counts,
                    [&](Index stream) { counts.Expect(s.streams[stream].dirty, "not dirty"); });
  Length<PlaceList>(s, s.delayed, &counts, [](Index) {});
  for (size_t i = 0; i < config_->devices.size(); ++i) {
    const DeviceRecord& device = s.devices[i];
    CheckSlabs(*this, static_cast<int>(i), &counts);
    counts.Expect(device.context_bytes == context_bytes[i],
                  Text("device", i, ": context memory", device.context_bytes, "counted,",
                       context_bytes[i], "found"));
    const MemoryInfo memory = Memory(static_cast<int>(i));
    counts.Expect(memory.total_bytes - memory.free_bytes <= device.peak_bytes,
                  Text("device", i, ": more in use than its peak", device.peak_bytes));
    const uint32_t ring = Length<Ring>(s, device.ring, &counts, [&](Index context) {
      counts.Expect(s.contexts[context].slot.life == Life::kLive, "dead context in the ring");
    });
    counts.Expect(ring == device.ring_size, "ring size");
    counts.Expect((device.phase == EnginePhase::kIdle) == (device.current == 0), "engine phase");
  }
  return counts.broken;
}

}  // namespace prorata::simgpu
