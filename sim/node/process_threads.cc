#include "sim/node/process_threads.h"

#include <limits>

#include "client/compute/lease_report.h"
#include "sim/node/agent.h"
#include "sim/node/world.h"

namespace prorata::simulation {
namespace {

constexpr int64_t kJoinAgainNs = 50'000'000;
constexpr int64_t kCostFactor = 20;  // as TickCompute

// As if functions had the same handles in every run; -1: that of the streams that only exist.
uint64_t KeyOf(int function) {
  const auto handle = static_cast<uintptr_t>(function + 2) * 64;
  return client::LaunchKey(reinterpret_cast<const void*>(handle), 1);
}

}  // namespace

// --- The program's thread -----------------------------------------------------------------------

void Process::Host::Start() {
  at_ = Governed() ? At::kJoin : At::kContext;
  WakeAt(process_.NowNs());
}

void Process::Host::MakeStreams() {
  const ProgramSpec& spec = process_.spec_;
  for (int i = 0; !spec.stream_per_request && i < spec.streams; ++i) {
    streams_.push_back(process_.MakeStream(this));
  }
  for (int i = 0; first_ && i < spec.idle_streams; ++i) {
    idle_streams_.push_back(process_.MakeStream(this));
  }
  if (first_) return;
  part_ = Part::kRequests;
  at_ = At::kLaunch;
  const Delays& delays = process_.world_.delays();
  WakeAt(process_.NowNs() + delays.create_context_ns + delays.Wake(process_.random_));
}

void Process::Host::LeaseWoken() {
  process_.world_.Trace("woken", process_.id_);
  WakeBy(process_.NowNs() + process_.world_.delays().Wake(process_.random_));
}

void Process::Host::Run() {
  const int64_t now_ns = process_.NowNs();
  if (process_.stopped_until_ns_ > now_ns) {
    return WakeAt(process_.stopped_until_ns_ + process_.world_.delays().Wake(process_.random_));
  }
  waits_for_lease_ = false;
  while (Step()) {
    if (Preempted()) return;
  }
}

bool Process::Host::Preempted() {
  const Delays& delays = process_.world_.delays();
  if (!process_.random_.Chance(delays.preempted)) return false;
  WakeAt(process_.NowNs() + process_.TakeSpent() +
         process_.random_.Between(0, delays.preempted_ns));
  return true;
}

void Process::Host::PayAndGoOn(At next) {
  at_ = next;
  WakeAt(process_.NowNs() + process_.TakeSpent());
}

bool Process::Host::Step() {
  switch (at_) {
    case At::kJoin:
      at_ = At::kAwaitWelcome;
      if (!process_.Join()) WakeAt(process_.NowNs() + kJoinAgainNs);
      return false;
    case At::kAwaitWelcome:
      at_ = process_.connected_ ? At::kContext : At::kJoin;
      if (process_.connected_) return true;
      WakeAt(process_.NowNs() + kJoinAgainNs);
      return false;
    case At::kContext:
      if (!process_.MakeContext()) return false;
      PayAndGoOn(At::kLaunch);
      return false;
    case At::kLaunch:
      // One whose life is over finishes what it began: else it would depend on how far ahead of the
      // device it may launch how much that is.
      if (process_.NowNs() >= process_.EndsNs() && (left_ == 0 || process_.spec_.life_ns == 0)) {
        at_ = At::kLast;
        return true;
      }
      if (left_ == 0 && !BeginPart()) return false;
      ChooseLaunch();
      raising_ = false;
      wait_ = client::LaunchWait(0);
      at_ = copies_ ? At::kCopyIn : Governed() ? At::kGate : At::kSubmit;
      return true;
    case At::kCopyIn:
      if (!CopyIn()) return false;
      at_ = Governed() ? At::kGate : At::kSubmit;
      return true;
    case At::kGate:
      return StepGate();
    case At::kRaise:
      if (!client::RaiseLaunching(process_, 0)) {
        raising_ = true;
        at_ = At::kGate;
        return true;
      }
      process_.Tracker().Begin(record(), estimate_ns_);
      at_ = At::kSubmit;
      return true;
    case At::kSubmit:
      return StepSubmit();
    case At::kAccount:
      StepAccount();
      return false;
    case At::kPoll:
      PayAndGoOn(At::kGate);
      return false;
    case At::kCopyOut:
      if (!CopyOut()) return false;
      PayAndGoOn(left_ == 0 ? At::kSync : At::kLaunch);
      return false;
    case At::kSync:
      if (gate_ != 0) process_.OpenGate(std::exchange(gate_, 0));
      if (!WaitsForStreams()) return SyncContext(At::kSynced);
      sync_stream_ = 0;
      at_ = At::kSyncStream;
      return true;
    case At::kSyncStream:
      return SyncStream();
    case At::kStreamSynced:
      if (Governed()) process_.Tracker().Proven(SyncedStreams()[sync_stream_].record, sync_mark_);
      ++sync_stream_;
      at_ = At::kSyncStream;
      return true;
    case At::kSynced:
      process_.world_.Trace("synced", process_.id_);
      if (epoch_ != 0) {
        process_.Tracker().ContextProven(process_.work_.get(), std::exchange(epoch_, 0), true);
      }
      EndPart();
      return false;
    case At::kLast:
      if (gate_ != 0) process_.OpenGate(std::exchange(gate_, 0));
      if (blocked_gate_ != 0) process_.OpenGate(std::exchange(blocked_gate_, 0));
      if (--process_.threads_at_work_ > 0) return false;
      return SyncContext(At::kEnd);
    case At::kEnd:
      process_.End();
      process_.world_.Ended(process_);
      return false;
  }
  return false;
}

// --- What it launches ----------------------------------------------------------------------------

bool Process::Host::BeginPart() {
  const ProgramSpec& spec = process_.spec_;
  if (part_ == Part::kIdleStreams) {
    left_ = spec.idle_streams;
    if (left_ > 0) return true;
    part_ = Part::kBlocked;
  }
  if (part_ == Part::kBlocked) {
    left_ = spec.blocked;
    if (left_ > 0) {
      blocked_ = process_.MakeStream(this);
      blocked_gate_ = process_.PutWait(blocked_, 0);
      return true;
    }
    part_ = Part::kRequests;
  }
  if (spec.every_ns > 0 && steps_ == 0 && !NextRequest()) return false;
  left_ = spec.per_sync > 0 ? spec.per_sync : std::numeric_limits<int>::max();
  if (spec.stream_per_request) streams_ = {process_.MakeStream(this)};
  if (spec.host_function_ns > 0) process_.PutHostFunction(streams_[0], spec.host_function_ns);
  if (spec.behind_wait) gate_ = process_.PutWait(streams_[0], 0);
  return true;
}

void Process::Host::ChooseLaunch() {
  if (part_ == Part::kIdleStreams) {
    constexpr int64_t kShortNs = 5'000;
    kernel_ns_ = kShortNs;
    key_ = KeyOf(-1);
    stream_ = idle_streams_[idle_streams_.size() - static_cast<size_t>(left_)];
    return;
  }
  const int function = process_.NextFunction();
  kernel_ns_ = process_.KernelNs(function);
  key_ = KeyOf(function);
  const int every = process_.spec_.copy_every;
  copies_ = part_ == Part::kRequests && process_.spec_.copy_in_bytes > 0 &&
            (every > 0 ? launched_ % static_cast<uint64_t>(every) == 0
                       : left_ == process_.spec_.per_sync);
  const size_t next = launched_++ % streams_.size();
  // In several streams they could come to the devices in different orders, and wait for each other.
  const bool in_order = NextIsCollective();
  stream_ = part_ == Part::kBlocked ? blocked_ : streams_[in_order ? 0 : next];
}

bool Process::Host::CopyIn() {
  const uint64_t bytes = process_.spec_.copy_in_bytes;
  if (!process_.spec_.copy_ahead) return Copy(simgpu::WorkKind::kCopyToDevice, bytes);
  for (; copies_made_ <= copies_used_; ++copies_made_) CopyAhead();
  const simgpu::Handle copied = copied_[copies_used_++ % copied_.size()];
  process_.Put(stream_, simgpu::Work::WaitFor(copied), /*waits=*/true);
  for (; copies_made_ <= copies_used_; ++copies_made_) CopyAhead();
  return true;
}

// As loaders of data do: the next request's, while this one runs.
void Process::Host::CopyAhead() {
  if (copy_stream_.handle == 0) {
    copy_stream_ = process_.MakeStream(this);
    for (auto& event : copied_) event = process_.MakeEvent();
  }
  constexpr auto kKind = simgpu::WorkKind::kCopyToDevice;
  process_.PutCopy(copy_stream_, kKind, process_.spec_.copy_in_bytes);
  const simgpu::Handle copied = copied_[copies_made_ % copied_.size()];
  process_.Put(copy_stream_, simgpu::Work::Record(copied), /*waits=*/false);
}

bool Process::Host::CopyOut() {
  const ProgramSpec& spec = process_.spec_;
  const bool due =
      spec.copy_every > 0 ? launched_ % static_cast<uint64_t>(spec.copy_every) == 0 : left_ == 0;
  if (spec.copy_out_bytes == 0 || !due || part_ != Part::kRequests) return true;
  return Copy(simgpu::WorkKind::kCopyToHost, spec.copy_out_bytes);
}

bool Process::Host::Copy(simgpu::WorkKind kind, uint64_t bytes) {
  if (process_.PutCopy(stream_, kind, bytes)) return true;
  process_.world_.AwaitRoom(this, stream_.handle);
  return false;
}

bool Process::Host::NextIsCollective() const {
  const uint64_t every = process_.CollectiveEvery();
  return every > 0 && (process_.launches_ + 1) % every == 0;
}

// A part's last launch has been waited for.
void Process::Host::EndPart() {
  const ProgramSpec& spec = process_.spec_;
  at_ = At::kLaunch;
  if (part_ != Part::kRequests) {
    part_ = Part::kBlocked;
    return PayAndGoOn(At::kLaunch);
  }
  if (spec.stream_per_request) process_.DestroyStream(streams_[0]);
  const bool whole = ++steps_ >= spec.steps;
  if (whole) steps_ = 0;
  if (whole && std::exchange(in_request_, false)) {
    process_.requests_.push_back({process_.NowNs(), process_.NowNs() - request_came_ns_});
  }
  int64_t gap_ns = spec.gap_ns + (process_.IsFirst() ? spec.first_gap_ns : 0);
  if (whole && spec.every_ns > 0) gap_ns = 0;
  if (whole && spec.burst_ns > 0 && process_.NowNs() >= rests_ns_) {
    gap_ns += spec.quiet_ns;
    rests_ns_ = process_.NowNs() + gap_ns + spec.burst_ns;
  }
  if (gap_ns == 0) return PayAndGoOn(At::kLaunch);
  WakeAt(process_.NowNs() + process_.TakeSpent() + gap_ns +
         process_.world_.delays().TimedOut(process_.random_));
}

// --- Synchronisation -----------------------------------------------------------------------------

// For its own only: others of the process have work of their own, or work that does not begin.
bool Process::Host::WaitsForStreams() const {
  const ProgramSpec& spec = process_.spec_;
  return spec.threads > 1 || spec.blocked > 0 || spec.stream_per_request;
}

const std::vector<Process::Stream>& Process::Host::SyncedStreams() const {
  return part_ == Part::kIdleStreams ? idle_streams_ : streams_;
}

bool Process::Host::SyncStream() {
  if (sync_stream_ == SyncedStreams().size()) {
    at_ = At::kSynced;
    return true;
  }
  const Stream& stream = SyncedStreams()[sync_stream_];
  process_.spent_ns_ += process_.world_.delays().synchronize_ns;
  if (Governed()) sync_mark_ = process_.Tracker().Mark(stream.record);
  at_ = At::kStreamSynced;
  process_.world_.AwaitStream(this, stream.handle);
  return false;
}

bool Process::Host::SyncContext(At then) {
  process_.spent_ns_ += process_.world_.delays().synchronize_ns;
  at_ = then;
  if (Governed()) epoch_ = process_.Tracker().MarkContext(process_.work_.get());
  process_.world_.AwaitContext(this, process_.context_);
  return false;
}

// --- A launch ------------------------------------------------------------------------------------

// An open loop: requests come at their own times, and wait for those before them.
bool Process::Host::NextRequest() {
  const ProgramSpec& spec = process_.spec_;
  const int64_t now_ns = process_.NowNs();
  if (next_request_ns_ < 0) next_request_ns_ = now_ns;
  if (now_ns < next_request_ns_) {
    WakeAt(std::min(next_request_ns_, spec.stop_ns) +
           process_.world_.delays().TimedOut(process_.random_));
    return false;
  }
  in_request_ = true;
  request_came_ns_ = next_request_ns_;
  next_request_ns_ += spec.poisson ? process_.kernels_.Exponential(spec.every_ns) : spec.every_ns;
  return true;
}

bool Process::Host::StepGate() {
  const Delays& delays = process_.world_.delays();
  if (!client::MayLaunch(process_.Limits(0), process_.compute_)) {
    process_.Tracker().FenceBeforeWait(record());
  }
  const client::LaunchWait::Next next = wait_.Step(process_);
  switch (next.what) {
    case client::LaunchWait::Do::kPass:
      if (raising_) {
        at_ = At::kRaise;
        return true;
      }
      estimate_ns_ = process_.estimates_.Lookup(key_);
      begins_ = client::BeginsBatch(record(), estimate_ns_);
      at_ = begins_ ? At::kRaise : At::kSubmit;
      return true;
    case client::LaunchWait::Do::kAwaitLease:
      waits_for_lease_ = true;
      process_.spent_ns_ = 0;
      process_.world_.Trace("waits", process_.id_, next.lease);
      WakeAt(process_.NowNs() + next.timeout_ns + delays.TimedOut(process_.random_));
      return false;
    case client::LaunchWait::Do::kAwaitBacklog:
      at_ = At::kPoll;
      WakeAt(process_.NowNs() + process_.TakeSpent() + next.timeout_ns +
             delays.TimedOut(process_.random_));
      return false;
  }
  return false;
}

bool Process::Host::StepSubmit() {
  World& world = process_.world_;
  const ProgramSpec& spec = process_.spec_;
  const simgpu::Handle stream = stream_.handle;
  const simgpu::Work kernel = simgpu::Work::Kernel(kernel_ns_, spec.sm_ppm);
  std::array<simgpu::Work, simgpu::Machine::kMaxBatch> nodes;
  const auto count = static_cast<size_t>(std::max(1, spec.graph));
  std::fill_n(nodes.begin(), count, kernel);
  if (NextIsCollective()) {
    const uint64_t collectives = (process_.launches_ + 1) / process_.CollectiveEvery();
    const uint64_t rendezvous = (uint64_t{process_.group()} + 1) << 40 | collectives;
    nodes[count - 1] = simgpu::Work::Collective(kernel_ns_, spec.sm_ppm, rendezvous,
                                                static_cast<uint32_t>(spec.devices.size()));
  }
  const auto submitted = world.machine().Submit(stream, {nodes.data(), count});
  if (!submitted) {
    world.AwaitRoom(this, stream);  // the queue of the stream is full
    return false;
  }
  world.CoreTouched();
  process_.spent_ns_ += spec.graph > 0 ? world.delays().graph_launch_ns : world.delays().launch_ns;
  at_ = At::kAccount;
  return true;
}

void Process::Host::StepAccount() {
  if (Governed()) {
    const client::Added added = client::AddLaunch(record(), this, key_, estimate_ns_);
    if (added.opened) process_.Tracker().Opened(record(), begins_);
    if (added.due) process_.Tracker().End(record(), estimate_ns_ == 0);
    if (begins_) {
      process_.Tracker().Returned(record());
      process_.compute_.launching.fetch_sub(1);
    }
  }
  ++process_.launches_;
  process_.spent_ns_ += process_.spec_.host_ns;
  process_.world_.Trace("launched", process_.id_, kernel_ns_);
  --left_;
  // Nobody waits for what does not begin.
  const bool blocked = part_ == Part::kBlocked;
  if (left_ == 0 && blocked) part_ = Part::kRequests;
  if (blocked) return PayAndGoOn(At::kLaunch);
  if (process_.spec_.copy_out_bytes > 0) return PayAndGoOn(At::kCopyOut);
  PayAndGoOn(left_ == 0 ? At::kSync : At::kLaunch);
}

// --- The helper ---------------------------------------------------------------------------------

void Process::Helper::Readable() {
  WakeBy(process_.NowNs() + process_.world_.delays().Wake(process_.random_));
}

void Process::Helper::JoinAnswered(bool welcome) {
  if (welcome) process_.compute_.wanted_plus_1.store(0);
  join_until_ns_ = 0;
  next_connect_ns_ = process_.NowNs() + (welcome ? 0 : kReconnectEveryNs);
  Readable();
}

void Process::Helper::Run() {
  const Delays& delays = process_.world_.delays();
  const int64_t now_ns = process_.NowNs();
  if (process_.stopped_until_ns_ > now_ns) {
    return WakeAt(process_.stopped_until_ns_ + delays.Wake(process_.random_));
  }
  if (process_.joining_ && now_ns >= join_until_ns_) {
    process_.joining_ = false;
    next_connect_ns_ = now_ns + kReconnectEveryNs;
  }
  if (!process_.connected_ && !process_.joining_ && now_ns >= next_connect_ns_) {
    join_until_ns_ = now_ns + kJoinWithinNs;
    if (!process_.Join()) next_connect_ns_ = now_ns + kReconnectEveryNs;
  }
  int64_t wait_ns = client::TickDevice(process_, 0, now_ns, client::HeartbeatLost(process_));
  const int64_t spent_ns = process_.TakeSpent();
  wait_ns = std::max(wait_ns, spent_ns * kCostFactor);
  const bool joining = process_.joining_;
  if (joining) wait_ns = std::min(wait_ns, std::max<int64_t>(1, join_until_ns_ - now_ns));
  if (!process_.connected_ && !joining) wait_ns = std::min(wait_ns, kReconnectEveryNs);
  process_.world_.Trace("helper polls", process_.id_,
                        static_cast<int64_t>(process_.usage_.backlog_ns.load()));
  process_.usage_.looks_by_ns.store(now_ns + spent_ns + wait_ns);
  WakeAt(now_ns + spent_ns + wait_ns + delays.TimedOut(process_.random_));
}

}  // namespace prorata::simulation
