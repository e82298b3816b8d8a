#include <algorithm>

#include "sim/core/model/model.h"
#include "sim/core/model/model_lists.h"

// What goes wrong with a device: work that is dropped, a device that is lost or stands still.

namespace prorata::simgpu {

// A stream whose work is gone counts as done with it: who waits for it goes on, and hears from the
// driver what happened. Commits in steps; between them the stream is in no list, and whoever comes
// after a kill begins again.
void Model::DropQueue(Index index) {
  const StreamRecord& stream = state().streams[index];
  if (stream.completed == stream.submitted && stream.left.head == 0) return;
  const Index process = state().contexts[stream.context].process;
  Unplace(index);
  // So that a step on the way leaves nothing to be pumped but what is at rest.
  MarkDirty(index);
  while (stream.items.head != 0) {
    ReleaseItem(process, UnlinkHead(index));
    tx_.Mut(stream.completed) += 1;
    tx_.Commit();
  }
  while (stream.left.head != 0) {
    PopLeft(index);
    tx_.Commit();
  }
  tx_.Mut(stream.completed) = stream.submitted;
  WakeWaiters(index);
  tx_.Commit();
  wake_waiters_.push_back(process);
  wake_executors_.push_back(process);
}

void Model::DropWork(Index context) {
  for (Index stream = state().contexts[context].streams.head; stream != 0;
       stream = ContextStreams::Next(state(), stream)) {
    DropQueue(stream);
  }
}

void Model::LoseDevice(int device) {
  tx_.Mut(state().devices[device].lost) = true;
  tx_.Commit();
  DropLost();
}

// Also what somebody who was killed over it has left.
void Model::DropLost() {
  const auto* devices = state().devices;
  if (std::none_of(devices, devices + config_->devices.size(),
                   [](const DeviceRecord& device) { return device.lost; })) {
    return;
  }
  for (Index context = 1; context <= state().free_contexts.highest; ++context) {
    const ContextRecord& record = state().contexts[context];
    if (record.slot.life == Life::kLive && state().devices[record.device].lost) DropWork(context);
  }
}

void Model::StallDevice(int index, int64_t for_ns) {
  DeviceRecord& device = tx_.Mut(state().devices[index]);
  const int64_t since_ns = std::max(device.stalled_until_ns, now());
  device.stalled_until_ns = since_ns + for_ns;
  for (CopyEngine& engine : device.copy) {
    if (engine.queue.head != 0) engine.finish_ns += for_ns;
  }
  if (device.phase == EnginePhase::kSwitching) {
    device.phase_end_ns += for_ns;
  } else if (device.phase == EnginePhase::kRunning) {
    // As when a context is put on: what runs goes on after it.
    device.phase = EnginePhase::kSwitching;
    device.phase_end_ns = device.stalled_until_ns;
  }
}

// When a fault of the machine's file is due that no launch begins; kForever when none is left.
int64_t Model::NextFaultNs() const {
  int64_t next = kForever;
  for (size_t i = 0; i < config_->faults.size(); ++i) {
    const FaultConfig& fault = config_->faults[i];
    if (fault.after_ns < 0 || (state().faults_done >> i & 1) != 0) continue;
    next = std::min(next, state().made_ns + fault.after_ns);
  }
  return next;
}

void Model::FaultsDue() {
  for (size_t i = 0; i < config_->faults.size(); ++i) {
    const FaultConfig& fault = config_->faults[i];
    if (fault.after_ns < 0 || (state().faults_done >> i & 1) != 0) continue;
    if (state().made_ns + fault.after_ns > now()) continue;
    tx_.Mut(state().faults_done) |= uint32_t{1} << i;
    if (fault.kind == FaultKind::kStall) StallDevice(fault.device, fault.for_ns);
    if (fault.kind == FaultKind::kDeviceLost) LoseDevice(fault.device);
  }
}

}  // namespace prorata::simgpu
