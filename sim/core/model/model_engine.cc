#include <algorithm>

#include "sim/core/model/model.h"
#include "sim/core/model/model_lists.h"

namespace prorata::simgpu {

void Model::AdvanceTo(int64_t now_ns) {
  if (!config_->faults.empty()) {
    if (state().made_ns == 0) tx_.Mut(state().made_ns) = std::max<int64_t>(now_ns, 1);
    DropLost();
  }
  for (;;) {
    Settle();
    const int64_t next = NextEventNs();
    if (next > now_ns) break;
    PassTime(next);
    ProcessDue();
    tx_.Commit();
  }
  PassTime(now_ns);
}

// A long one in pieces, each a change by itself: whoever is killed in one leaves less to the next.
// Of what is older than all samples only the last piece matters.
void Model::PassTime(int64_t to_ns) {
  constexpr int64_t kAllNs = kProcessSamples * kProcessSampleNs;
  const int64_t from_ns = std::max(now(), to_ns - kAllNs);
  for (int64_t at_ns = (from_ns / kProcessSampleNs + 1) * kProcessSampleNs; at_ns < to_ns;
       at_ns += kProcessSampleNs) {
    MoveTime(at_ns);
    tx_.Commit();
  }
  MoveTime(to_ns);
  tx_.Commit();
}

void Model::Settle() {
  NotePeaks();
  for (;;) {
    while (const Index stream = state().dirty.head) {
      Pump(stream);
      tx_.Commit();
    }
    for (size_t device = 0; device < config_->devices.size(); ++device) {
      Schedule(static_cast<int>(device));
    }
    tx_.Commit();
    if (state().dirty.head == 0) return;
  }
}

int64_t Model::NextEventNs() const {
  int64_t next = kForever;
  // A delayed head's time is kept in finish_ns while it is delayed.
  if (const Index stream = state().delayed.head) next = state().streams[stream].finish_ns;
  if (!config_->faults.empty()) next = std::min(next, NextFaultNs());
  for (size_t device = 0; device < config_->devices.size(); ++device) {
    next = std::min(next, NextDeviceEventNs(static_cast<int>(device)));
  }
  return std::max(next, now());
}

int64_t Model::NextDeviceEventNs(int index) const {
  const DeviceRecord& device = state().devices[index];
  int64_t next = kForever;
  if (device.phase == EnginePhase::kSwitching) {
    next = device.phase_end_ns;
  } else if (device.phase == EnginePhase::kRunning) {
    const ContextRecord& context = state().contexts[device.current];
    if (context.running.head != 0) {
      const int64_t finish_ns = state().streams[context.running.head].finish_ns;
      // Who waits for others ends when they do.
      if (finish_ns != kNotYetNs) next = now() + finish_ns - context.engine_ns;
    }
    if (device.ring_size > 1) next = std::min(next, device.slice_end_ns);
  }
  for (const CopyEngine& engine : device.copy) {
    if (engine.queue.head != 0) next = std::min(next, engine.finish_ns);
  }
  return next;
}

void Model::MoveTime(int64_t to_ns) {
  const int64_t delta = to_ns - now();
  if (delta <= 0) return;
  if (to_ns / kProcessSampleNs != now() / kProcessSampleNs) {
    for (size_t index = 0; index < config_->devices.size(); ++index) {
      SampleProcesses(static_cast<int>(index), to_ns);
    }
  }
  tx_.Mut(state().now_ns) = to_ns;
  for (size_t index = 0; index < config_->devices.size(); ++index) {
    const DeviceRecord& device = state().devices[index];
    if (device.phase == EnginePhase::kSwitching) tx_.Mut(device.switching_ns) += delta;
    if (device.phase == EnginePhase::kRunning) {
      const ContextRecord& context = state().contexts[device.current];
      if (context.running.head != 0) {
        tx_.Mut(context.engine_ns) += delta;
        tx_.Mut(device.busy_ns) += delta;
        tx_.Mut(state().processes[context.process].busy_ns[index]) += delta;
      }
    }
    TakeSample(static_cast<int>(index));
  }
}

// As NVIDIA's driver does it (H100, driver 580.159.04, bench/results): five times a second it looks
// whose context the device has, and that process alone is said to have run since the last look.
// Nothing changes on the device between now() and `to_ns`, which is after the next look.
void Model::SampleProcesses(int index, int64_t to_ns) {
  const DeviceRecord& device = state().devices[index];
  const bool runs =
      device.phase == EnginePhase::kRunning && state().contexts[device.current].running.head != 0;
  const Index context = device.current != 0 ? device.current : device.last_context;
  const Index process = context != 0 ? state().contexts[context].process : 0;
  const int64_t time_ns = to_ns / kProcessSampleNs * kProcessSampleNs;
  const int64_t busy_ns = device.busy_ns + (runs ? time_ns - now() : 0);
  const int64_t ran_ns = std::min(busy_ns - device.sampled_busy_ns, kProcessSampleNs);
  const auto percent = static_cast<uint32_t>(ran_ns * 100 / kProcessSampleNs);
  tx_.Mut(device.process_sample[device.process_samples % kProcessSamples]) = {
      time_ns, percent > 0 ? process : 0, state().processes[process].slot.generation, percent};
  tx_.Mut(device.process_samples) += 1;
  tx_.Mut(device.sampled_busy_ns) = busy_ns;
}

void Model::TakeSample(int index) {
  constexpr int64_t kSampleNs = kNsPerS / (kUsageSamples / 2);
  const DeviceRecord& device = state().devices[index];
  const UsageSample& last = device.sample[(device.samples + kUsageSamples - 1) % kUsageSamples];
  if (device.samples != 0 && now() - last.time_ns < kSampleNs) return;
  tx_.Mut(device.sample[device.samples % kUsageSamples]) = {now(), device.busy_ns};
  tx_.Mut(device.samples) += 1;
}

uint32_t Model::UtilizationPpm(int index) const {
  const DeviceRecord& device = state().devices[index];
  const int64_t from_ns = now() - kNsPerS;
  // The oldest kept sample inside the window, and the one before it to interpolate with.
  UsageSample after{now(), device.busy_ns};
  const uint32_t kept = std::min(device.samples, kUsageSamples);
  for (uint32_t back = 1; back <= kept; ++back) {
    const UsageSample& sample = device.sample[(device.samples - back) % kUsageSamples];
    if (sample.time_ns < from_ns) {
      const double share = static_cast<double>(from_ns - sample.time_ns) /
                           static_cast<double>(after.time_ns - sample.time_ns);
      const double busy_then = static_cast<double>(sample.busy_ns) +
                               share * static_cast<double>(after.busy_ns - sample.busy_ns);
      const double busy = static_cast<double>(device.busy_ns) - busy_then;
      return static_cast<uint32_t>(std::clamp(busy / kNsPerS, 0.0, 1.0) * 1e6);
    }
    after = sample;
  }
  const int64_t span = now() - after.time_ns;
  if (span <= 0) return 0;
  return static_cast<uint32_t>(static_cast<double>(device.busy_ns - after.busy_ns) * 1e6 /
                               static_cast<double>(span));
}

// Everything that is due at this instant, in the order of model.h.
void Model::ProcessDue() {
  if (!config_->faults.empty()) FaultsDue();
  while (const Index stream = state().delayed.head) {
    if (state().streams[stream].finish_ns > now()) break;
    Unplace(stream);
    MarkDirty(stream);
  }
  for (size_t i = 0; i < config_->devices.size(); ++i) {
    const int index = static_cast<int>(i);
    const DeviceRecord& device = state().devices[index];
    while (ProcessKernels(index)) {
    }
    while (ProcessCopies(index)) {
    }
    if (device.phase == EnginePhase::kSwitching && device.phase_end_ns <= now()) {
      DeviceRecord& changed = tx_.Mut(device);
      changed.phase = EnginePhase::kRunning;
      changed.slice_end_ns = now() + device_config(index).time_slice_ns;
    } else if (device.phase == EnginePhase::kRunning && device.ring_size > 1 &&
               device.slice_end_ns <= now()) {
      const Index current = device.current;
      Ring::Remove(tx_, device.ring, current);
      Ring::Append(tx_, device.ring, current);
      PutOnEngine(index);
    }
  }
}

// The first kernel that is done, if there is one.
bool Model::ProcessKernels(int index) {
  const DeviceRecord& device = state().devices[index];
  if (device.phase != EnginePhase::kRunning) return false;
  const ContextRecord& context = state().contexts[device.current];
  const Index stream = context.running.head;
  if (stream == 0 || state().streams[stream].finish_ns > context.engine_ns) return false;
  if (state().items[state().streams[stream].items.head].rendezvous != 0 && !Met(stream))
    return true;
  Unplace(stream);
  FinishEngine(stream);
  return true;
}

// The kernel of this stream has run its time. If all whom it meets have, they end with it; those
// whose context has not its device at the moment, when it has. Else it goes on and waits.
bool Model::Met(Index index) {
  const ItemRecord& item = state().items[state().streams[index].items.head];
  std::vector<Index> others;
  for (size_t device = 0; device < config_->devices.size(); ++device) {
    for (Index in_ring = state().devices[device].ring.head; in_ring != 0;
         in_ring = Ring::Next(state(), in_ring)) {
      for (Index other = state().contexts[in_ring].running.head; other != 0;
           other = PlaceList::Next(state(), other)) {
        const StreamRecord& stream = state().streams[other];
        if (other != index && stream.finish_ns == kNotYetNs &&
            state().items[stream.items.head].rendezvous == item.rendezvous) {
          others.push_back(other);
        }
      }
    }
  }
  const auto run_on = [this](Index stream, int64_t finish_ns) {
    const List& running = state().contexts[state().streams[stream].context].running;
    PlaceList::Remove(tx_, running, stream);
    PlaceList::InsertBefore(tx_, running, finish_ns == kNotYetNs ? 0 : running.head, stream);
    tx_.Mut(state().streams[stream].finish_ns) = finish_ns;
  };
  if (others.size() + 1 < item.rendezvous_size) {
    run_on(index, kNotYetNs);
    return false;
  }
  // They have met: what they still wait for is their turn on their device.
  for (const Index other : others) {
    tx_.Mut(state().items[state().streams[other].items.head].rendezvous) = 0;
    run_on(other, state().contexts[state().streams[other].context].engine_ns);
  }
  return true;
}

bool Model::ProcessCopies(int index) {
  for (const CopyEngine& engine : state().devices[index].copy) {
    const Index stream = engine.queue.head;
    if (stream == 0 || engine.finish_ns > now()) continue;
    Unplace(stream);
    FinishEngine(stream);
    return true;
  }
  return false;
}

void Model::StartCopy(int device, int which) {
  const CopyEngine& engine = state().devices[device].copy[which];
  if (engine.queue.head == 0) return;
  const Index item = state().streams[engine.queue.head].items.head;
  const int64_t stalled_ns = std::max<int64_t>(state().devices[device].stalled_until_ns - now(), 0);
  tx_.Mut(engine.finish_ns) = now() + stalled_ns + state().items[item].duration_ns;
  tx_.Mut(state().streams[engine.queue.head].started_ns) = now();
}

void Model::Schedule(int index) {
  const DeviceRecord& device = state().devices[index];
  if (device.phase == EnginePhase::kSwitching) return;
  if (device.phase == EnginePhase::kRunning) {
    const ContextRecord& context = state().contexts[device.current];
    if (context.ready.head == 0 && context.running.head == 0) LeaveRing(device.current);
  }
  if (device.phase == EnginePhase::kIdle && device.ring.head != 0) PutOnEngine(index);
  if (device.phase == EnginePhase::kRunning) Admit(index);
}

// The head of the ring gets the engine.
void Model::PutOnEngine(int index) {
  DeviceRecord& device = tx_.Mut(state().devices[index]);
  device.current = device.ring.head;
  const bool loaded = device.last_context == 0 || device.last_context == device.current;
  device.last_context = device.current;
  const int64_t stalled_ns = std::max<int64_t>(device.stalled_until_ns - now(), 0);
  const int64_t cost = stalled_ns + (loaded ? 0 : device_config(index).switch_cost_ns);
  device.phase = cost == 0 ? EnginePhase::kRunning : EnginePhase::kSwitching;
  device.phase_end_ns = now() + cost;
  device.slice_end_ns = now() + cost + device_config(index).time_slice_ns;
}

// Kernels that are ready start as long as the next in line fits beside those that run. One that
// does not fit holds up those behind it that would use its SMs.
void Model::Admit(int index) {
  const ContextRecord& context = state().contexts[state().devices[index].current];
  SmSet held;
  Index next = 0;
  for (Index stream = context.ready.head; stream != 0; stream = next) {
    next = PlaceList::Next(state(), stream);
    const SmSet& sms = state().streams[stream].sms;
    const bool in_line = sms.all() ? !held.all() : held.Overlaps(sms);
    if (!in_line && Fits(context, stream)) {
      StartKernel(stream);
    } else if (sms.all()) {
      return;
    } else {
      held.Add(sms);
    }
  }
}

// So much of a device are these SMs.
uint32_t Model::PartPpm(int device, const SmSet& sms) const {
  if (sms.all()) return 1'000'000;
  const uint64_t ppm = uint64_t{1'000'000} * sms.count() / device_config(device).sm_count;
  return static_cast<uint32_t>(std::clamp<uint64_t>(ppm, 1, 1'000'000));
}

// Whether the stream's kernel finds room beside those that run: on the device, and in each part
// that one of them is confined to and that contains its own. That is exact for parts of which each
// two are apart or one inside the other.
bool Model::Fits(const ContextRecord& context, Index index) const {
  const StreamRecord& stream = state().streams[index];
  const uint32_t ppm = state().items[stream.items.head].sm_ppm;
  if (context.running_ppm + ppm > 1'000'000) return false;
  if (stream.sms.all()) return true;
  const auto fits_in = [&](const SmSet& part) {
    uint32_t sum = ppm;
    for (Index other = context.running.head; other != 0; other = PlaceList::Next(state(), other)) {
      const StreamRecord& beside = state().streams[other];
      if (!beside.sms.all() && part.Contains(beside.sms)) {
        sum += state().items[beside.items.head].sm_ppm;
      }
    }
    return sum <= PartPpm(static_cast<int>(context.device), part);
  };
  if (!fits_in(stream.sms)) return false;
  for (Index other = context.running.head; other != 0; other = PlaceList::Next(state(), other)) {
    const SmSet& part = state().streams[other].sms;
    if (part != stream.sms && part.Contains(stream.sms) && !fits_in(part)) return false;
  }
  return true;
}

void Model::StartKernel(Index stream) {
  const ContextRecord& context = state().contexts[state().streams[stream].context];
  const ItemRecord& item = state().items[state().streams[stream].items.head];
  PlaceList::Remove(tx_, context.ready, stream);
  const int64_t finish = context.engine_ns + item.duration_ns;
  Index before = 0;
  for (Index other = context.running.tail; other != 0 && state().streams[other].finish_ns > finish;
       other = PlaceList::Prev(state(), other)) {
    before = other;
  }
  PlaceList::InsertBefore(tx_, context.running, before, stream);
  StreamRecord& record = tx_.Mut(state().streams[stream]);
  record.place = Place::kRunning;
  record.finish_ns = finish;
  record.started_ns = now();
  tx_.Mut(context.running_ppm) += item.sm_ppm;
}

void Model::JoinRing(Index index) {
  const ContextRecord& context = state().contexts[index];
  if (context.ring) return;
  const DeviceRecord& device = state().devices[context.device];
  if (device.phase == EnginePhase::kRunning && device.slice_end_ns <= now()) {
    // The one that had the engine alone went through whole slices meanwhile.
    const int64_t slice = device_config(static_cast<int>(context.device)).time_slice_ns;
    const int64_t over = now() - device.slice_end_ns;
    tx_.Mut(device.slice_end_ns) += (over / slice + 1) * slice;
  }
  Ring::Append(tx_, device.ring, index);
  tx_.Mut(device.ring_size) += 1;
  tx_.Mut(context.ring) = true;
}

void Model::LeaveRing(Index index) {
  const ContextRecord& context = state().contexts[index];
  if (!context.ring) return;
  const DeviceRecord& device = state().devices[context.device];
  Ring::Remove(tx_, device.ring, index);
  tx_.Mut(context.ring) = false;
  DeviceRecord& changed = tx_.Mut(device);
  changed.ring_size -= 1;
  if (changed.current == index) {
    changed.current = 0;
    changed.phase = EnginePhase::kIdle;
  }
}

}  // namespace prorata::simgpu
