#include "sim/core/machine.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "sim/core/attachment.h"
#include "sim/core/futex.h"
#include "sim/core/machine_operation.h"
#include "sim/core/model/model.h"

namespace prorata::simgpu {

namespace {

constexpr int64_t kReapEveryNs = 5 * kNsPerMs;  // real time; bounds how long a dead process stays
constexpr int kScrubWaitUs = 100;
constexpr int kMaxScrubWaits = 50000;

using Kind = Model::Kind;

}  // namespace

// --- One call under the lock --------------------------------------------------------------------

Operation::Operation(Machine* machine)
    : machine_(machine), attachment_(*machine->attachment_), model(attachment_.model()) {
  attachment_.Lock();
  now_ns = machine->NowNs();
  model.AdvanceTo(now_ns);
  if (attachment_.shared()) {
    const int64_t real_ns = RealClock().NowNs();
    const int64_t last_ns = attachment_.state()->last_reap_ns.load(std::memory_order_relaxed);
    if (real_ns - last_ns > kReapEveryNs || real_ns < last_ns) Reap();
  }
}

Operation::~Operation() {
  model.Settle();
  std::vector<Index> executors;
  std::vector<Index> waiters;
  std::swap(executors, model.wake_executors());
  std::swap(waiters, model.wake_waiters());
  State* state = attachment_.state();
  attachment_.Unlock();
  if (!attachment_.shared()) return;
  const auto wake = [](std::vector<Index>& processes, std::atomic<uint32_t>* words) {
    std::sort(processes.begin(), processes.end());
    processes.erase(std::unique(processes.begin(), processes.end()), processes.end());
    for (const Index process : processes) {
      words[process].fetch_add(1);
      FutexWakeAll(&words[process]);
    }
  };
  wake(executors, state->executor_word);
  wake(waiters, state->waiter_word);
}

Wipe Operation::wipe() {
  return [this](int device, const Extent& extent) { attachment_.Wipe(device, extent); };
}

bool Operation::IsSelf(const ProcessRecord& process) const {
  return Identity{process.pid, process.pid_namespace, process.image} == attachment_.identity();
}

void Operation::Reap() {
  if (!attachment_.shared()) return;
  const State& state = model.state();
  for (Index slot = 1; slot <= state.free_processes.highest; ++slot) {
    const ProcessRecord& process = state.processes[slot];
    if (process.slot.life == Life::kFree || IsSelf(process)) continue;
    if (attachment_.presence().HolderPid(slot) < 0) model.EndProcess(slot, wipe());
  }
  ReapDescriptors();
  model.Settle();
  attachment_.state()->last_reap_ns.store(RealClock().NowNs(), std::memory_order_relaxed);
}

void Operation::ReapDescriptors() {
  const State& state = model.state();
  Index next = 0;
  for (Index index = state.descriptors.head; index != 0; index = next) {
    next = state.exports[index].in_descriptors.next;
    if (attachment_.descriptors().Held(index)) continue;
    model.DropDescriptor(index, wipe());
    attachment_.descriptors().Remove(index);
  }
}

int Operation::PidOf(Index slot) const {
  const ProcessRecord& process = model.state().processes[slot];
  if (!attachment_.shared() || IsSelf(process)) return process.pid;
  return attachment_.presence().HolderPid(slot);
}

// --- The machine --------------------------------------------------------------------------------

Machine::Machine(MachineConfig config, std::unique_ptr<Attachment> attachment,
                 VirtualClock* virtual_clock)
    : config_(std::move(config)),
      attachment_(std::move(attachment)),
      virtual_clock_(virtual_clock),
      dilated_clock_(config_.dilation),
      pid_(getpid()) {}

Machine::~Machine() {
  // In a forked child it is the parent's, and not this process's to end.
  if (process_ != 0 && pid_ == getpid()) UnregisterProcess(process_);
}

Result<std::unique_ptr<Machine>> Machine::Attach(const MachineConfig& config,
                                                 const std::string& state_folder) {
  auto attachment = Attachment::Open(config, state_folder);
  if (!attachment) return std::unexpected(attachment.error());
  return std::unique_ptr<Machine>(new Machine(config, std::move(*attachment), nullptr));
}

std::unique_ptr<Machine> Machine::MakeLocal(const MachineConfig& config, VirtualClock* clock) {
  return std::unique_ptr<Machine>(new Machine(config, Attachment::Local(config), clock));
}

bool Machine::retired() const { return attachment_->state()->retired.load() != 0; }

int64_t Machine::NowNs() const {
  return virtual_clock_ != nullptr ? virtual_clock_->NowNs() : dilated_clock_.NowNs();
}

int Machine::memory_fd(int device) const { return attachment_->memory_fd(device); }

Answer<Handle> Machine::RegisterProcess(int local_pid) {
  Operation op(this);
  if (process_ != 0) return process_;
  const bool shared = attachment_->shared();
  const Identity identity = shared ? attachment_->identity() : Identity{local_pid, 0, 0};
  op.Reap();
  for (Index slot = 1; slot <= kMaxProcesses; ++slot) {
    // Free in the table yet locked: somebody is just leaving it. Locked by this very process
    // cannot be told from unlocked, hence the table is asked too.
    if (op.model.state().processes[slot].slot.life != Life::kFree) continue;
    if (shared && !attachment_->presence().Claim(slot)) continue;
    const auto added =
        op.model.AddProcess(slot, identity.pid, identity.pid_namespace, identity.image);
    if (!added) return std::unexpected(added.error());
    const Handle handle = op.model.HandleOf(Kind::kProcess, slot);
    if (shared) process_ = handle;
    return handle;
  }
  return std::unexpected(Code::kOutOfResources);
}

Code Machine::UnregisterProcess(Handle handle) {
  const std::unique_lock no_wiping(wipe_mutex_);
  Operation op(this);
  const Index process = op.model.Find(Kind::kProcess, handle);
  if (process == 0) return Code::kInvalidHandle;
  op.model.EndProcess(process, op.wipe());
  if (attachment_->shared()) attachment_->presence().Release(process);
  if (handle == process_) process_ = 0;
  return Code::kOk;
}

Answer<Handle> Machine::CreateContext(Handle handle, int device) {
  if (device < 0 || device >= device_count()) return std::unexpected(Code::kInvalidValue);
  Operation op(this);
  const Index process = op.model.Find(Kind::kProcess, handle);
  if (process == 0) return std::unexpected(Code::kInvalidHandle);
  if (op.model.Lost(device)) return std::unexpected(Code::kDeviceLost);
  auto context = op.model.AddContext(process, device);
  if (!context) {
    op.Reap();
    context = op.model.AddContext(process, device);
  }
  if (!context) return std::unexpected(context.error());
  return op.model.HandleOf(Kind::kContext, *context);
}

Code Machine::DestroyContext(Handle handle) {
  const std::shared_lock wiping(wipe_mutex_);
  Index context = 0;
  {
    Operation op(this);
    context = op.model.Find(Kind::kContext, handle);
    if (context == 0) return Code::kInvalidHandle;
    op.model.BeginEndContext(context);
  }
  FreeAll(context);
  Operation op(this);
  op.model.EndContext(context, op.wipe());
  return Code::kOk;
}

// --- Memory -------------------------------------------------------------------------------------

Answer<std::vector<Extent>> Machine::AllocSlabs(Handle handle, uint64_t bytes) {
  bool reaped = false;
  for (int waits = 0;;) {
    {
      Operation op(this);
      const Index context = op.model.Find(Kind::kContext, handle);
      if (context == 0) return std::unexpected(Code::kInvalidHandle);
      if (op.DeviceIsLost(context)) return std::unexpected(Code::kDeviceLost);
      auto extents = op.model.AllocSlabs(context, bytes);
      if (extents || extents.error() == Code::kInvalidValue) return extents;
      if (!reaped) {
        reaped = true;
        op.Reap();
        continue;
      }
      if (extents.error() != Code::kNotReady || ++waits > kMaxScrubWaits) {
        return std::unexpected(Code::kOutOfMemory);
      }
    }
    // Somebody is wiping what it freed; if it dies over that, a reap finishes the job.
    std::this_thread::sleep_for(std::chrono::microseconds(kScrubWaitUs));
  }
}

Code Machine::MoveSlabs(Handle from, Handle to, std::span<const Extent> extents) {
  Operation op(this);
  const Index source = op.model.Find(Kind::kContext, from);
  const Index target = op.model.Find(Kind::kContext, to);
  if (source == 0 || target == 0) return Code::kInvalidHandle;
  const Code code = op.model.MoveSlabs(source, target, extents);
  if (code != Code::kOk) op.model.tx().Rollback();
  return code;
}

// The pages are punched out without the lock; until then the slabs belong to this process as
// "scrubbing", so a kill in between leaves them to the reaper.
void Machine::FinishFree(int device, Index process, std::span<const Extent> extents) {
  for (const Extent& extent : extents) attachment_->Wipe(device, extent);
  Operation op(this);
  op.model.EndFree(device, process, extents);
}

Code Machine::FreeSlabs(Handle handle, std::span<const Extent> extents) {
  const std::shared_lock wiping(wipe_mutex_);
  Index process = 0;
  int device = 0;
  {
    Operation op(this);
    const Index context = op.model.Find(Kind::kContext, handle);
    if (context == 0) return Code::kInvalidHandle;
    process = op.model.state().contexts[context].process;
    device = static_cast<int>(op.model.state().contexts[context].device);
    if (op.model.BeginFree(context, process, extents) != Code::kOk) {
      op.model.tx().Rollback();
      return Code::kInvalidValue;
    }
    if (!attachment_->shared()) {
      op.model.EndFree(device, process, extents);
      return Code::kOk;
    }
  }
  FinishFree(device, process, extents);
  return Code::kOk;
}

Code Machine::FreeAllSlabs(Handle handle) {
  const std::shared_lock wiping(wipe_mutex_);
  Index context = 0;
  {
    Operation op(this);
    context = op.model.Find(Kind::kContext, handle);
  }
  if (context == 0) return Code::kInvalidHandle;
  FreeAll(context);
  return Code::kOk;
}

void Machine::FreeAll(Index context) {
  DropSharesOf(context);
  std::vector<Extent> extents;
  Index process = 0;
  int device = 0;
  {
    Operation op(this);
    const ContextRecord& record = op.model.state().contexts[context];
    if (record.slabs == 0) return;
    process = record.process;
    device = static_cast<int>(record.device);
    extents = op.model.OwnedSlabs(device, context);
    op.model.BeginFree(context, process, extents);
  }
  FinishFree(device, process, extents);
}

Answer<MemoryInfo> Machine::MemInfo(int device) {
  if (device < 0 || device >= device_count()) return std::unexpected(Code::kInvalidValue);
  Operation op(this);
  op.Reap();
  return op.model.Memory(device);
}

// --- Streams and events -------------------------------------------------------------------------

Answer<Handle> Machine::CreateStream(Handle handle, StreamKind kind, int priority,
                                     const StreamPart& part) {
  Operation op(this);
  const Index context = op.model.Find(Kind::kContext, handle);
  if (context == 0) return std::unexpected(Code::kInvalidHandle);
  const auto stream = op.model.AddStream(context, kind, priority, part);
  if (!stream) return std::unexpected(stream.error());
  return op.model.HandleOf(Kind::kStream, *stream);
}

Code Machine::DestroyStream(Handle handle) {
  Operation op(this);
  const Index stream = op.model.Find(Kind::kStream, handle);
  if (stream == 0) return Code::kInvalidHandle;
  op.model.EndStream(stream);
  return Code::kOk;
}

Answer<Handle> Machine::CreateEvent(Handle handle) {
  Operation op(this);
  const Index context = op.model.Find(Kind::kContext, handle);
  if (context == 0) return std::unexpected(Code::kInvalidHandle);
  const auto event = op.model.AddEvent(context);
  if (!event) return std::unexpected(event.error());
  return op.model.HandleOf(Kind::kEvent, *event);
}

Code Machine::DestroyEvent(Handle handle) {
  Operation op(this);
  const Index event = op.model.Find(Kind::kEvent, handle);
  if (event == 0) return Code::kInvalidHandle;
  op.model.RemoveEvent(event);
  return Code::kOk;
}

Answer<uint64_t> Machine::Submit(Handle handle, std::span<const Work> work) {
  if (work.size() > kMaxBatch) return std::unexpected(Code::kInvalidValue);
  Operation op(this);
  const Index stream = op.model.Find(Kind::kStream, handle);
  if (stream == 0) return std::unexpected(Code::kInvalidHandle);
  const StreamRecord& record = op.model.state().streams[stream];
  if (op.DeviceIsLost(record.context)) return std::unexpected(Code::kDeviceLost);
  if (record.queued + record.left_count + work.size() > kQueueDepth) {
    return std::unexpected(Code::kFull);
  }
  return op.model.Submit(stream, work);
}

Answer<int64_t> Machine::ElapsedNs(Handle start, Handle end) {
  Operation op(this);
  const Index first = op.model.Find(Kind::kEvent, start);
  const Index last = op.model.Find(Kind::kEvent, end);
  if (first == 0 || last == 0) return std::unexpected(Code::kInvalidHandle);
  const EventRecord& from = op.model.state().events[first];
  const EventRecord& to = op.model.state().events[last];
  if (from.records == 0 || to.records == 0) return std::unexpected(Code::kInvalidValue);
  for (const Handle event : {start, end}) {
    Condition condition;
    op.Resolve({Target::Kind::kEvent, event, 0}, &condition);
    if (op.model.Check(&condition) != Code::kOk) return std::unexpected(Code::kNotReady);
  }
  return to.time_ns - from.time_ns;
}

// --- Faults -------------------------------------------------------------------------------------

Code Machine::DropWork(Handle handle) {
  Operation op(this);
  const Index context = op.model.Find(Kind::kContext, handle);
  if (context == 0) return Code::kInvalidHandle;
  op.model.DropWork(context);
  return Code::kOk;
}

Code Machine::LoseDevice(int device) {
  if (device < 0 || device >= device_count()) return Code::kInvalidValue;
  Operation(this).model.LoseDevice(device);
  return Code::kOk;
}

bool Machine::Lost(int device) {
  // A device is lost only by a fault, and this is asked with every call.
  return !config_.faults.empty() && Operation(this).model.Lost(device);
}

Code Machine::StallDevice(int device, int64_t for_ns) {
  if (device < 0 || device >= device_count() || for_ns < 0) return Code::kInvalidValue;
  Operation(this).model.StallDevice(device, for_ns);
  return Code::kOk;
}

uint32_t Machine::MeetFault(size_t fault) {
  return attachment_->state()->fault_processes[fault].fetch_add(1) + 1;
}

// --- Looking ------------------------------------------------------------------------------------

Answer<int64_t> Machine::ContextBusyNs(Handle handle) {
  Operation op(this);
  const Index context = op.model.Find(Kind::kContext, handle);
  if (context == 0) return std::unexpected(Code::kInvalidHandle);
  return op.model.state().contexts[context].engine_ns;
}

void Machine::Reap() { Operation(this).Reap(); }

int64_t Machine::NextEventNs() {
  Operation op(this);
  return op.model.NextEventNs();
}

std::string Machine::CheckInvariants() {
  Operation op(this);
  return op.model.CheckInvariants();
}

Answer<DeviceUsage> Machine::Usage(int index) {
  if (index < 0 || index >= device_count()) return std::unexpected(Code::kInvalidValue);
  for (;;) {
    Operation op(this);
    op.Reap();
    DeviceUsage usage;
    if (op.Look(index, &usage)) return usage;
  }
}

// False when a process died since the last Reap: it would be there without a pid.
bool Operation::Look(int index, DeviceUsage* out) const {
  const State& state = model.state();
  const DeviceRecord& device = state.devices[index];
  const DeviceConfig& config = machine_->config_.devices[index];
  const MemoryInfo memory = model.Memory(index);
  DeviceUsage& usage = *out;
  usage.total_bytes = memory.total_bytes;
  usage.free_bytes = memory.free_bytes;
  usage.used_bytes = memory.total_bytes - memory.free_bytes;
  usage.peak_bytes = device.peak_bytes;
  usage.now_ns = state.now_ns;
  usage.busy_ns = device.busy_ns;
  usage.switching_ns = device.switching_ns;
  usage.utilization_ppm = model.UtilizationPpm(index);
  for (Index slot = 1; slot <= state.free_processes.highest; ++slot) {
    const ProcessRecord& process = state.processes[slot];
    if (process.slot.life == Life::kFree) continue;
    ProcessUsage entry{.slot = static_cast<int>(slot),
                       .busy_ns = process.busy_ns[index],
                       .begun_ns = process.begun_ns};
    bool here = false;
    for (Index context = process.contexts.head; context != 0;
         context = state.contexts[context].in_process.next) {
      if (state.contexts[context].device != static_cast<uint32_t>(index)) continue;
      here = true;
      entry.used_bytes += config.context_bytes + state.contexts[context].slabs * config.slab_bytes;
    }
    entry.used_bytes += process.block_slabs[index] * config.slab_bytes;
    if (!here && process.block_slabs[index] == 0) continue;
    entry.pid = PidOf(slot);
    if (entry.pid < 0) return false;
    usage.processes.push_back(entry);
  }
  const uint32_t kept = std::min(device.process_samples, kProcessSamples);
  for (uint32_t back = kept; back >= 1; --back) {
    const ProcessSampleRecord& sample =
        device.process_sample[(device.process_samples - back) % kProcessSamples];
    const Slot& slot = state.processes[sample.process].slot;
    const bool there =
        sample.process != 0 && slot.life == Life::kLive && slot.generation == sample.generation;
    const int pid = there ? PidOf(sample.process) : 0;
    if (pid < 0) return false;
    const int64_t monotonic_ns = machine_->dilated_clock_.RealNs(sample.time_ns);
    usage.samples.push_back(
        {sample.time_ns, state.realtime_offset_us + monotonic_ns / kNsPerUs, pid, sample.percent});
  }
  return true;
}

}  // namespace prorata::simgpu
