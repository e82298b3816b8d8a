#include <algorithm>
#include <new>

#include "sim/node/process_threads.h"
#include "sim/node/world.h"

namespace prorata::simulation {

using simgpu::Work;

// --- Streams ------------------------------------------------------------------------------------

Process::Stream Process::MakeStream(const Host* thread) {
  Stream stream;
  stream.handle = world_.machine().CreateStream(context_, simgpu::StreamKind::kNonBlocking).value();
  spent_ns_ += world_.delays().create_event_ns;
  if (share_ == nullptr) return stream;
  if (free_records_.empty()) {
    records_.push_back(std::make_unique<client::StreamRecord>());
    free_records_.push_back(records_.back().get());
  }
  client::StreamRecord* const record = free_records_.back();
  free_records_.pop_back();
  record->~StreamRecord();
  new (record) client::StreamRecord{};
  record->owner.store(thread);
  record->work = work_.get();
  record->context = reinterpret_cast<CUcontext>(context_);
  record->stream = reinterpret_cast<CUstream>(stream.handle);
  stream.record = record;
  return stream;
}

// As EndStream of the client library (capture_abi.cc).
void Process::DestroyStream(const Stream& stream) {
  if (stream.record != nullptr) {
    stream.record->ending.store(1);
    Tracker().EndBeforeWait(stream.record);
    if (!Tracker().StreamGone(stream.record)) RecordGone(stream.record);
  }
  world_.machine().DestroyStream(stream.handle);
  world_.CoreTouched();
  spent_ns_ += world_.delays().create_event_ns;
}

// --- What makes a stream wait -------------------------------------------------------------------

// The gate is a stream that nothing runs in: the wait is for its first entry.
simgpu::Handle Process::PutWait(const Stream& stream, simgpu::Handle event_before) {
  simgpu::Machine& machine = world_.machine();
  const simgpu::Handle gate =
      machine.CreateStream(context_, simgpu::StreamKind::kNonBlocking).value();
  if (stream.record != nullptr) Tracker().EndBeforeWait(stream.record);
  if (event_before != 0) machine.Submit(stream.handle, Work::Record(event_before)).value();
  machine.Submit(stream.handle, Work::WaitForStream(gate, 1)).value();
  world_.CoreTouched();
  spent_ns_ += world_.delays().record_ns;
  if (stream.record != nullptr) stream.record->waits.store(1);
  return gate;
}

void Process::OpenGate(simgpu::Handle gate) {
  world_.machine().Submit(gate, Work::Host(0)).value();
  world_.machine().DestroyStream(gate);
  world_.CoreTouched();
}

void Process::PutHostFunction(const Stream& stream, int64_t ns) {
  const simgpu::Handle reached = world_.machine().CreateEvent(context_).value();
  host_functions_->Add(reached, PutWait(stream, reached), ns);
}

// As the library's InStream (device_work.h).
bool Process::Put(const Stream& stream, const Work& work, bool waits) {
  if (stream.record != nullptr && waits) Tracker().EndBeforeWait(stream.record);
  if (!world_.machine().Submit(stream.handle, work)) return false;
  world_.CoreTouched();
  spent_ns_ += world_.delays().record_ns;
  if (stream.record != nullptr && waits) client::NoteWait(stream.record);
  return true;
}

bool Process::PutCopy(const Stream& stream, simgpu::WorkKind kind, uint64_t bytes) {
  return Put(stream, Work::Copy(kind, bytes), bytes >= client::kLongCopyBytes);
}

simgpu::Handle Process::MakeEvent() { return world_.machine().CreateEvent(context_).value(); }

void Process::HostFunctions::Add(simgpu::Handle reached, simgpu::Handle gate, int64_t ns) {
  queue_.push_back({reached, gate, ns});
  if (queue_.size() == 1) Begin();
}

void Process::HostFunctions::Begin() {
  running_ = false;
  process_.world_.AwaitEvent(this, queue_.front().reached);
}

void Process::HostFunctions::Run() {
  const Entry entry = queue_.front();
  if (!std::exchange(running_, true)) {
    process_.world_.machine().DestroyEvent(entry.reached);
    return WakeAt(process_.NowNs() + entry.ns);
  }
  process_.OpenGate(entry.gate);
  queue_.pop_front();
  if (!queue_.empty()) Begin();
}

}  // namespace prorata::simulation
