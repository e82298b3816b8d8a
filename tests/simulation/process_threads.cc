#include "simulation/process_threads.h"

#include "client/lease_tick.h"
#include "simulation/agent.h"
#include "simulation/world.h"

namespace prorata::simulation {
namespace {

constexpr int64_t kJoinAgainNs = 50'000'000;

}  // namespace

// --- The program's thread -----------------------------------------------------------------------

void Process::Host::Start() {
  at_ = Governed() ? At::kJoin : At::kContext;
  WakeAt(process_.NowNs());
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
  process_.waits_for_lease_ = false;
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

bool Process::Host::AwaitDevice(simgpu::Handle handle, bool event) {
  if (event) {
    process_.world_.AwaitEvent(this, handle);
  } else {
    process_.world_.AwaitContext(this, handle);
  }
  return false;
}

bool Process::Host::Step() {
  World& world = process_.world_;
  const ProgramSpec& spec = process_.spec_;
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
      if (process_.NowNs() >= spec.stop_ns) {
        at_ = At::kLast;
        return true;
      }
      if (spec.every_ns > 0 && !in_request_ && !NextRequest()) return false;
      kernel_ns_ = process_.KernelNs();
      stream_ = static_cast<int>(process_.launches_ % static_cast<uint64_t>(spec.streams));
      // One function for all, whatever its kernels take: the hard case for estimates.
      key_ = client::LaunchKey(&spec, 1, 1, 1);
      raising_ = false;
      wait_ = client::LaunchWait(0);
      at_ = Governed() ? At::kGate : At::kSubmit;
      return true;
    case At::kGate:
      return StepGate();
    case At::kRaise:
      if (!client::RaiseLaunching(process_, record())) {
        raising_ = true;
        at_ = At::kGate;
        return true;
      }
      estimate_ns_ = client::PrepareBatch(process_.Fences(), record(), estimate_ns_);
      at_ = At::kSubmit;
      return true;
    case At::kSubmit:
      return StepSubmit();
    case At::kAccount:
      StepAccount();
      return false;
    case At::kFenced:
      client::DropReference(process_.ring_.get(), held_slot_);
      process_.Fences().Harvest(process_.ring_.get());
      PayAndGoOn(At::kGate);
      return false;
    case At::kSync:
    case At::kLast:
      process_.spent_ns_ += world.delays().synchronize_ns;
      at_ = at_ == At::kSync ? At::kSynced : At::kEnd;
      return AwaitDevice(process_.context_, false);
    case At::kSynced:
      world.Trace("synced", process_.id_);
      at_ = At::kLaunch;
      if (std::exchange(in_request_, false)) {
        process_.requests_.push_back({process_.NowNs(), process_.NowNs() - request_came_ns_});
      }
      if (spec.gap_ns > 0) {
        WakeAt(process_.NowNs() + process_.TakeSpent() + spec.gap_ns +
               world.delays().TimedOut(process_.random_));
        return false;
      }
      PayAndGoOn(At::kLaunch);
      return false;
    case At::kEnd:
      process_.End();
      return false;
  }
  return false;
}

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
  next_request_ns_ += spec.poisson ? process_.random_.Exponential(spec.every_ns) : spec.every_ns;
  return true;
}

bool Process::Host::StepGate() {
  const Delays& delays = process_.world_.delays();
  if (!client::MayLaunch(process_.Limits(0), process_.compute_)) {
    client::FenceBeforeWait(process_, record());
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
      process_.waits_for_lease_ = true;
      process_.spent_ns_ = 0;
      process_.world_.Trace("waits", process_.id_, next.lease);
      WakeAt(process_.NowNs() + next.timeout_ns + delays.TimedOut(process_.random_));
      return false;
    case client::LaunchWait::Do::kAwaitFence:
      held_slot_ = client::HoldOldest(process_.ring_.get());
      if (held_slot_ < 0) {
        // The helper has just harvested it.
        WakeAt(process_.NowNs() + 1'000'000 + delays.TimedOut(process_.random_));
        return false;
      }
      at_ = At::kFenced;
      return AwaitDevice(reinterpret_cast<simgpu::Handle>(process_.ring_->slots[held_slot_].end),
                         true);
  }
  return false;
}

bool Process::Host::StepSubmit() {
  World& world = process_.world_;
  const ProgramSpec& spec = process_.spec_;
  const simgpu::Handle stream = process_.streams_[static_cast<size_t>(stream_)];
  const simgpu::Work kernel = simgpu::Work::Kernel(kernel_ns_, spec.sm_ppm);
  std::array<simgpu::Work, simgpu::Machine::kMaxBatch> nodes;
  const auto count = static_cast<size_t>(std::max(1, spec.graph));
  std::fill_n(nodes.begin(), count, kernel);
  if (spec.collective_every > 0 &&
      (process_.launches_ + 1) % static_cast<uint64_t>(spec.collective_every) == 0) {
    const uint64_t meeting = (uint64_t{process_.group()} + 1) << 40 | (process_.launches_ + 1);
    nodes[count - 1] = simgpu::Work::Collective(kernel_ns_, spec.sm_ppm, meeting,
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
  const ProgramSpec& spec = process_.spec_;
  if (Governed()) {
    if (client::AddLaunch(record(), this, key_, estimate_ns_)) {
      process_.Fences().EndBatch(record(), estimate_ns_ == 0);
    }
    if (begins_) record()->launching.fetch_sub(1);
  }
  ++process_.launches_;
  process_.world_.Trace("launched", process_.id_, kernel_ns_);
  const bool sync =
      spec.per_sync > 0 && process_.launches_ % static_cast<uint64_t>(spec.per_sync) == 0;
  PayAndGoOn(sync ? At::kSync : At::kLaunch);
}

// --- The helper ---------------------------------------------------------------------------------

void Process::Helper::Move(int64_t at_ns) {
  if (by_timer_) WakeAt(at_ns + process_.world_.delays().Wake(process_.random_));
}

void Process::Helper::Readable() {
  by_timer_ = false;
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
  by_timer_ = false;
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
  {
    const client::RingUse use(process_.ring_.get());
    if (use.entered() && process_.ring_->head >= 0) {
      process_.Fences().Harvest(process_.ring_.get());
    }
  }
  const bool silent = client::Silent(process_);
  const auto look = [this](uint32_t) {
    client::OpenWork open;
    for (size_t i = 0; i < process_.streams_.size(); ++i) open.Add(process_.records_[i]);
    open.Add(*process_.ring_);
    return open;
  };
  int64_t wait_ns = client::TickDevice(process_, 0, now_ns, silent, look);
  const bool joining = process_.joining_;
  if (joining) wait_ns = std::min(wait_ns, std::max<int64_t>(1, join_until_ns_ - now_ns));
  if (!process_.connected_ && !joining) wait_ns = std::min(wait_ns, kReconnectEveryNs);
  process_.world_.Trace("helper looks", process_.id_,
                        static_cast<int64_t>(process_.usage_.backlog_ns.load()));
  by_timer_ = true;  // which is exact, but its thread must wake
  WakeAt(now_ns + process_.TakeSpent() + wait_ns + delays.Wake(process_.random_));
}

}  // namespace prorata::simulation
