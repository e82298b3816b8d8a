#include "sim/node/process.h"

#include <algorithm>

#include "sim/node/agent.h"
#include "sim/node/process_threads.h"
#include "sim/node/world.h"

namespace prorata::simulation {
namespace {

// The library's types for the core's handles, and back.
CUevent EventOf(simgpu::Handle handle) { return reinterpret_cast<CUevent>(handle); }
simgpu::Handle HandleOf(CUevent event) { return reinterpret_cast<simgpu::Handle>(event); }
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
      kernel_seed_(KernelSeed(world, spec, rank.device)),
      kernels_(kernel_seed_),
      helper_(std::make_unique<Helper>(world.loop(), *this)),
      host_functions_(std::make_unique<HostFunctions>(world.loop(), *this)) {
  for (int i = 0; i < spec.threads; ++i) {
    hosts_.push_back(std::make_unique<Host>(world.loop(), *this, i == 0));
  }
}

Process::~Process() {
  if (work_ != nullptr) client::FreeFences(work_.get());
}

void Process::Start() {
  alive_ = true;
  began_ns_ = NowNs();
  process_ = world_.machine().RegisterProcess(pid()).value();
  world_.Trace("start", id_);
  hosts_[0]->Start();
}

int64_t Process::EndsNs() const {
  const int64_t lives_until_ns = began_ns_ + spec_.life_ns;
  return spec_.life_ns > 0 ? std::min(spec_.stop_ns, lives_until_ns) : spec_.stop_ns;
}

bool Process::waits_for_lease() const {
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [](const auto& host) { return host->waits_for_lease(); });
}

bool Process::Join() {
  if (!world_.agent()->alive()) return false;
  joining_ = true;
  world_.agent()->Post(*this, wire::MessageType::kJoin, 0);
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
  spent_ns_ += world_.delays().create_context_ns;
  if (share_ != nullptr) {
    usage_.overhead_bytes.store(world_.machine().device(rank_.device).context_bytes);
    work_ = std::make_unique<client::ContextWork>();
    work_->context.store(reinterpret_cast<CUcontext>(context_));
  }
  for (const auto& host : hosts_) host->MakeStreams();
  threads_at_work_ = spec_.threads;
  if (share_ != nullptr) helper_->WakeAt(NowNs());
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
  std::vector<Thread*> threads = {helper_.get(), host_functions_.get()};
  for (const auto& host : hosts_) {
    host->StopWaiting();
    threads.push_back(host.get());
  }
  for (Thread* thread : threads) {
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

// The same for the same process of the same program, whoever runs beside it.
uint64_t Process::KernelSeed(const World& world, const ProgramSpec& spec, int device) {
  const auto earlier =
      std::count_if(world.processes().begin(), world.processes().end(),
                    [&](const auto& process) { return process->spec().name == spec.name; });
  uint64_t seed = world.seed() * 1'000'003 + static_cast<uint64_t>(earlier) * 64 +
                  static_cast<uint64_t>(device);
  for (const char c : spec.name) seed = seed * 31 + static_cast<unsigned char>(c);
  return seed;
}

// The function that it launches next.
int Process::NextFunction() {
  return spec_.functions == 1 ? 0 : static_cast<int>(kernels_.Between(0, spec_.functions - 1));
}

int64_t Process::KernelNs(int function) {
  const KernelTime& kernel = spec_.kernel;
  if (kernel.grows_over > 0) {
    const auto over = static_cast<uint64_t>(kernel.grows_over);
    const double part = static_cast<double>(launches_ % over) / static_cast<double>(over);
    const auto range = static_cast<double>(kernel.high_ns - kernel.low_ns);
    return kernel.low_ns + static_cast<int64_t>(part * range);
  }
  if (spec_.functions == 1) return DrawKernelNs(kernels_);
  Random its(kernel_seed_ + static_cast<uint64_t>(function) * 7919);
  return DrawKernelNs(its);
}

int64_t Process::DrawKernelNs(Random& random) const {
  const KernelTime& kernel = spec_.kernel;
  if (!kernel.parts.empty()) {
    double left = random.Unit();
    for (size_t i = 0; i + 1 < kernel.parts.size(); ++i) {
      left -= kernel.parts[i];
      if (left < 0) return kernel.choice_ns[i];
    }
    return kernel.choice_ns.back();
  }
  if (!kernel.choice_ns.empty()) return kernel.choice_ns[random.Next() % kernel.choice_ns.size()];
  return random.Between(kernel.low_ns, kernel.high_ns);
}

// The worst that comes to mind: any word, any value, and messages for any sequence.
void Process::Lie(Random& random) {
  if (!alive_ || share_ == nullptr || !connected_) return;
  lied_ = true;
  const uint64_t values[] = {
      0,           1, random.Next(), random.Next() % 1'000'000'000, static_cast<uint64_t>(NowNs()),
      ~uint64_t{0}};
  const uint64_t value = values[random.Next() % std::size(values)];
  const auto sequence = client::SequenceOf(Limits(0).lease.load());
  switch (random.Between(0, 12)) {
    case 0:
      return usage_.device_time_ns.store(value);
    case 1:
      return usage_.backlog_ns.store(value);
    case 2:
      return usage_.waiting.store(static_cast<uint32_t>(value));
    case 3:
      return usage_.drained_sequence.store(static_cast<uint32_t>(value));
    case 4:
      return usage_.drained_sequence.store(sequence);
    case 5:
      return usage_.launches.store(value);
    case 6:
      return usage_.persistent_ns.store(value);
    case 7:
      return usage_.expected_end_ns.store(static_cast<int64_t>(value));
    case 8:
      return usage_.blocked.store(static_cast<uint32_t>(value));
    case 9:
      return usage_.occupied_ns.store(value);
    case 10:
      return usage_.occupied_since_ns.store(static_cast<int64_t>(value));
    case 11:
      return usage_.looks_by_ns.store(static_cast<int64_t>(value));
    default:
      break;
  }
  using Type = wire::MessageType;
  const Type types[] = {Type::kLeaseWanted, Type::kLeaseIdle, Type::kLeaseDrained};
  const uint32_t of = random.Chance(0.5) ? sequence : static_cast<uint32_t>(value);
  world_.agent()->Post(*this, types[random.Next() % std::size(types)], of);
}

// --- The agent's side ---------------------------------------------------------------------------

void Process::Welcomed() {
  if (!alive_ || !joining_) return;
  joining_ = false;
  connected_ = true;
  world_.Trace("joined", id_);
  if (context_ == 0) {
    hosts_[0]->WakeAt(NowNs() + world_.delays().Wake(random_));
  } else {
    helper_->JoinAnswered(true);
  }
}

void Process::LeaseMessage() {
  if (alive_ && context_ != 0) helper_->Readable();
}

void Process::LeaseWordChanged() {
  if (!alive_) return;
  for (const auto& host : hosts_) {
    if (host->waits_for_lease()) host->LeaseWoken();
  }
}

void Process::ConnectionClosed() {
  if (!alive_) return;
  const bool was_joining = std::exchange(joining_, false);
  connected_ = false;
  if (context_ == 0) {
    if (was_joining) hosts_[0]->WakeAt(NowNs() + world_.delays().Wake(random_));
  } else {
    helper_->JoinAnswered(false);
  }
}

// --- World --------------------------------------------------------------------------------------

int64_t Process::NowNs() { return world_.now_ns(); }

int64_t Process::HeartbeatLostNs() {
  return watch_.Observe(share_->header.heartbeat.load(std::memory_order_relaxed), NowNs());
}

// It knows its own device only, as a process of a distributed program does.
const shm::DeviceLimits& Process::Limits(uint32_t) {
  return *share_->limits[static_cast<size_t>(rank_.device)];
}

bool Process::Send(wire::MessageType type, const wire::LeaseEvent& event) {
  if (!connected_) return false;
  world_.agent()->Post(*this, type, event.sequence);
  spent_ns_ += world_.delays().message_ns;
  return true;
}

bool Process::CreateEvent(CUevent* event) {
  const auto made = world_.machine().CreateEvent(context_);
  spent_ns_ += world_.delays().create_event_ns;
  if (!made) return false;
  *event = EventOf(*made);
  return true;
}

client::Recorded Process::Record(const client::StreamRecord& stream, CUevent event) {
  spent_ns_ += world_.delays().record_ns;
  world_.CoreTouched();
  const simgpu::Work work = simgpu::Work::Record(HandleOf(event));
  const bool taken = world_.machine().Submit(HandleOf(stream.stream), work).has_value();
  return taken ? client::Recorded::kYes : client::Recorded::kNo;
}

bool Process::Pending(CUevent event) {
  spent_ns_ += world_.delays().query_ns;
  return world_.machine().QueryEvent(HandleOf(event)) == simgpu::Code::kNotReady;
}

client::StreamState Process::Ask(const client::StreamRecord& stream) {
  spent_ns_ += world_.delays().query_ns;
  const bool idle = world_.machine().QueryStream(HandleOf(stream.stream)) == simgpu::Code::kOk;
  return idle ? client::StreamState::kIdle : client::StreamState::kAtWork;
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
