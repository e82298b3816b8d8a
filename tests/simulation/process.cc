#include "simulation/process.h"

#include "simulation/agent.h"
#include "simulation/process_threads.h"
#include "simulation/world.h"

namespace prorata::simulation {
namespace {

// The library's types for the core's handles, and back.
CUevent EventOf(simgpu::Handle handle) { return reinterpret_cast<CUevent>(handle); }
simgpu::Handle HandleOf(CUevent event) { return reinterpret_cast<simgpu::Handle>(event); }
CUstream StreamOf(simgpu::Handle handle) { return reinterpret_cast<CUstream>(handle); }
simgpu::Handle HandleOf(CUstream stream) { return reinterpret_cast<simgpu::Handle>(stream); }

}  // namespace

Process::Process(World& world, const ProgramSpec& spec, SimulatedShare* share, uint32_t id,
                 Rank rank)
    : world_(world),
      spec_(spec),
      share_(share),
      id_(id),
      rank_(rank),
      random_(world.random().Next()),
      host_(std::make_unique<Host>(world.loop(), *this)),
      helper_(std::make_unique<Helper>(world.loop(), *this)) {}

Process::~Process() = default;

void Process::Start() {
  alive_ = true;
  began_ns_ = NowNs();
  process_ = world_.machine().RegisterProcess(static_cast<int>(1000 + id_)).value();
  world_.Trace("start", id_);
  host_->Start();
}

bool Process::Join() {
  if (!world_.agent()->alive()) return false;
  joining_ = true;
  world_.agent()->Post(*this, protocol::MessageType::kJoin, 0);
  return true;
}

bool Process::MakeContext() {
  const auto context = world_.machine().CreateContext(process_, rank_.device);
  if (!context) {
    world_.Fail("program " + std::to_string(id_) +
                " has no context: the device's memory is full (machine = { devices = [{ memory = " +
                "..., context_memory = ... }] })");
    End();
    return false;
  }
  context_ = *context;
  for (int i = 0; i < spec_.streams; ++i) {
    streams_.push_back(
        world_.machine().CreateStream(context_, simgpu::StreamKind::kNonBlocking).value());
  }
  spent_ns_ += world_.delays().create_context_ns;
  if (share_ == nullptr) return true;
  usage_.overhead_bytes.store(world_.machine().device(rank_.device).context_bytes);
  ring_ = std::make_unique<client::Ring>();
  client::ClearRing(ring_.get());
  ring_->context.store(reinterpret_cast<CUcontext>(context_));
  records_ = std::make_unique<client::StreamRecord[]>(streams_.size());
  for (size_t i = 0; i < streams_.size(); ++i) {
    client::StreamRecord& record = records_[i];
    record.owner.store(host_.get());
    record.ring = ring_.get();
    record.context = reinterpret_cast<CUcontext>(context_);
    record.stream = StreamOf(streams_[i]);
    record.open_slot = record.last_slot = -1;
  }
  helper_->WakeAt(NowNs());
  return true;
}

void Process::Kill() {
  if (!alive_) return;
  world_.Trace("kill", id_);
  End();
}

void Process::End() {
  busy_at_end_ns_ = BusyNs();
  alive_ = false;
  ended_ns_ = NowNs();
  waits_for_lease_ = false;
  for (Thread* thread : {static_cast<Thread*>(host_.get()), static_cast<Thread*>(helper_.get())}) {
    thread->Sleep();
    world_.ForgetWaits(thread);
  }
  world_.machine().UnregisterProcess(process_);
  world_.CoreTouched();
  world_.Trace("end", id_, busy_at_end_ns_);
  connected_ = joining_ = false;
  if (share_ != nullptr) world_.agent()->PostDeath(*this);
}

int64_t Process::BusyNs() const {
  if (!alive_ || context_ == 0) return busy_at_end_ns_;
  return world_.machine().ContextBusyNs(context_).value_or(0);
}

uint64_t Process::helper_looks() const { return helper_->runs(); }

int64_t Process::lived_ns() const { return (alive_ ? world_.now_ns() : ended_ns_) - began_ns_; }

int64_t Process::KernelNs() {
  const KernelTime& kernel = spec_.kernel;
  if (!kernel.choice_ns.empty()) return kernel.choice_ns[random_.Next() % kernel.choice_ns.size()];
  return random_.Between(kernel.low_ns, kernel.high_ns);
}

// --- The agent's side ---------------------------------------------------------------------------

void Process::Welcomed() {
  if (!alive_ || !joining_) return;
  joining_ = false;
  connected_ = true;
  world_.Trace("joined", id_);
  if (context_ == 0) {
    host_->WakeAt(NowNs() + world_.delays().Wake(random_));
  } else {
    helper_->JoinAnswered(true);
  }
}

void Process::LeaseMessage() {
  if (alive_ && context_ != 0) helper_->Readable();
}

void Process::LeaseWordChanged() {
  if (alive_ && waits_for_lease_) host_->LeaseWoken();
}

void Process::ConnectionClosed() {
  if (!alive_) return;
  const bool was_joining = std::exchange(joining_, false);
  connected_ = false;
  if (context_ == 0) {
    if (was_joining) host_->WakeAt(NowNs() + world_.delays().Wake(random_));
  } else {
    helper_->JoinAnswered(false);
  }
}

// --- World --------------------------------------------------------------------------------------

int64_t Process::NowNs() { return world_.now_ns(); }

int64_t Process::AgentSilentNs() {
  return silence_.Observe(share_->header.heartbeat.load(std::memory_order_relaxed), NowNs());
}

// It knows its own device only, as a process of a distributed program does.
const protocol::DeviceLimits& Process::Limits(uint32_t) {
  return *share_->limits[static_cast<size_t>(rank_.device)];
}

bool Process::Send(protocol::MessageType type, const protocol::LeaseEvent& event) {
  if (!connected_) return false;
  world_.agent()->Post(*this, type, event.sequence);
  spent_ns_ += world_.delays().message_ns;
  return true;
}

bool Process::PlanLook(uint32_t, int64_t at_ns, int64_t by_ns) {
  compute_.look_ns = at_ns;
  compute_.look_by_ns = by_ns;
  return by_ns != 0;
}

void Process::MoveLook(uint32_t, int64_t at_ns) {
  spent_ns_ += world_.delays().arm_timer_ns;
  compute_.look_ns = at_ns;
  helper_->Move(at_ns);
}

bool Process::CreateEvent(CUevent* event) {
  const auto made = world_.machine().CreateEvent(context_);
  spent_ns_ += world_.delays().create_event_ns;
  if (!made) return false;
  *event = EventOf(*made);
  return true;
}

bool Process::Record(const client::StreamRecord& stream, CUevent event) {
  spent_ns_ += world_.delays().record_ns;
  world_.CoreTouched();
  return world_.machine()
      .Submit(HandleOf(stream.stream), simgpu::Work::Record(HandleOf(event)))
      .has_value();
}

bool Process::Pending(CUevent event) {
  spent_ns_ += world_.delays().query_ns;
  return world_.machine().QueryEvent(HandleOf(event)) == simgpu::Code::kNotReady;
}

bool Process::Elapsed(CUevent from, CUevent to, int64_t* ns) {
  spent_ns_ += world_.delays().query_ns;
  const auto elapsed = world_.machine().ElapsedNs(HandleOf(from), HandleOf(to));
  if (!elapsed) return false;
  // The driver answers in milliseconds, as a float.
  const auto ms = static_cast<float>(static_cast<double>(*elapsed) / 1e6);
  *ns = static_cast<int64_t>(static_cast<double>(ms) * 1e6);
  return true;
}

}  // namespace prorata::simulation
