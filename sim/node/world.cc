#include "sim/node/world.h"

#include <algorithm>

namespace prorata::simulation {
namespace {

// A device that idles although a program waits for its lease, for longer than all of: a wake-up, a
// drain's grace, an idle report, and the time after which a unavailable agent is found out.
constexpr int64_t kLongestIdleNs = 500'000'000;
constexpr int64_t kStarvedNs = 2'000'000'000;
constexpr int64_t kWatchNs = 20'000'000;

}  // namespace

// Starts a program at its time.
class World::Launcher final : public Thread {
 public:
  Launcher(World& world, size_t spec) : Thread(world.loop()), world_(world), spec_(spec) {}

 private:
  void Run() override { world_.StartProgram(spec_); }
  World& world_;
  size_t spec_;
};

// `prorata update` at its time; again a moment later while no agent answers.
class World::Updater final : public Thread {
 public:
  Updater(World& world, const UpdateSpec& update)
      : Thread(world.loop()), world_(world), update_(update) {}

 private:
  static constexpr int64_t kAgainNs = 10'000'000;
  void Run() override {
    const Delays& delays = world_.delays();
    if (!sent_) {
      sent_ = true;
      return WakeAt(world_.now_ns() + delays.message_ns + delays.Wake(world_.random_));
    }
    if (!world_.agent_->Update(update_)) WakeAt(world_.now_ns() + kAgainNs);
  }
  World& world_;
  const UpdateSpec& update_;
  bool sent_ = false;
};

// What goes wrong, at random; and the watch over those who wait.
class World::Mischief final : public Thread {
 public:
  explicit Mischief(World& world)
      : Thread(world.loop()), world_(world), random_(world.random().Next()) {
    WakeAt(kWatchNs);
  }

 private:
  void Run() override {
    WakeAt(world_.now_ns() + kWatchNs);
    // Of the policies only prorata's promises it.
    if (world_.options_.check && world_.options_.policy == "default") world_.WatchWaiting();
    if (world_.finishing_) return;
    const Mishaps& mishaps = world_.options_.mishaps;
    const double seconds = static_cast<double>(kWatchNs) / 1e9;
    const int64_t until_ns = world_.now_ns() + random_.Between(0, mishaps.stop_ns);
    if (random_.Chance(mishaps.program_stops_per_s * seconds)) {
      if (Process* process = Anyone()) {
        const int64_t times = mishaps.long_stops ? 10 : 1;
        const int64_t go_on_ns = world_.now_ns() + times * (until_ns - world_.now_ns());
        world_.Trace("stop", process->id(), go_on_ns);
        process->Stop(go_on_ns);
      }
    }
    if (random_.Chance(mishaps.kills_per_s * seconds)) {
      if (Process* process = Anyone()) {
        // Those of one program go together, as their launcher sees to it.
        for (const auto& other : world_.processes_) {
          if (other->group() == process->group()) other->Kill();
        }
        world_.StartProgram(world_.spec_of_[process->id()]);
      }
    }
    if (world_.agent_ == nullptr) return;
    for (double lies = mishaps.lies_per_s * seconds; random_.Chance(lies); lies -= 1) {
      for (const auto& process : world_.processes_) {
        if (&process->spec() == &world_.scenario_.programs.back()) process->Lie(random_);
      }
    }
    if (random_.Chance(mishaps.agent_stops_per_s * seconds)) {
      world_.Trace("agent stop", 0, until_ns);
      world_.agent_->Stop(until_ns);
    }
    if (random_.Chance(mishaps.agent_kills_per_s * seconds)) world_.agent_->Kill(until_ns);
  }

  Process* Anyone() {
    std::vector<Process*> living;
    for (const auto& process : world_.processes_) {
      if (process->alive()) living.push_back(process.get());
    }
    return living.empty() ? nullptr : living[random_.Next() % living.size()];
  }

  World& world_;
  Random random_;
};

World::World(const Scenario& scenario, const WorldOptions& options)
    : scenario_(scenario),
      options_(options),
      random_(options.seed),
      machine_(simgpu::Machine::MakeLocal(scenario.machine, &clock_)) {
  if (scenario.prorata) agent_ = std::make_unique<Agent>(*this);
  for (size_t spec = 0; spec < scenario.programs.size(); ++spec) {
    const ProgramSpec& program = scenario.programs[spec];
    for (int i = 0; i < program.count; ++i) {
      if (agent_ != nullptr) {
        SimulatedShare* share = agent_->ShareOf(program.share);
        share->to_start += static_cast<int>(program.devices.size());
        // Whoever has its processes begun anew keeps it.
        if (program.life_ns > 0 || options.keep_shares) share->to_start += 1'000'000'000;
      }
      others_.push_back(std::make_unique<Launcher>(*this, spec));
      others_.back()->WakeAt(program.start_ns);
    }
  }
  for (const UpdateSpec& update : scenario.updates) {
    if (agent_ == nullptr) break;
    others_.push_back(std::make_unique<Updater>(*this, update));
    others_.back()->WakeAt(update.at_ns);
  }
  others_.push_back(std::make_unique<Mischief>(*this));
}

World::~World() = default;

void World::StartProgram(size_t spec) {
  const ProgramSpec& program = scenario_.programs[spec];
  SimulatedShare* share = agent_ != nullptr ? agent_->ShareOf(program.share) : nullptr;
  const uint32_t group = groups_++;
  for (const int device : program.devices) {
    if (share != nullptr && share->to_start > 0) --share->to_start;
    spec_of_.push_back(spec);
    const auto id = static_cast<uint32_t>(processes_.size());
    processes_.push_back(
        std::make_unique<Process>(*this, program, share, id, Process::Rank{device, group}));
    processes_.back()->Start();
  }
}

void World::Ended(const Process& process) {
  const ProgramSpec& program = process.spec();
  const int64_t again_ns = now_ns() + program.rest_ns;
  if (program.life_ns == 0 || again_ns >= program.stop_ns) return;
  others_.push_back(std::make_unique<Launcher>(*this, spec_of_[process.id()]));
  others_.back()->WakeAt(again_ns);
}

// --- The loop -----------------------------------------------------------------------------------

void World::RunUntil(int64_t end_ns) {
  for (;;) {
    if (core_next_ns_ < 0) core_next_ns_ = machine_->NextEventNs();
    const int64_t next_ns = loop_.NextNs();
    if (std::min(core_next_ns_, next_ns) > end_ns || !failure_.empty()) break;
    if (core_next_ns_ <= next_ns) {
      clock_.AdvanceTo(core_next_ns_);
      WatchGaps();
      ++core_events_;
      core_next_ns_ = machine_->NextEventNs();  // brings the core to now
      WatchIdleness();
      WakeWaiters();
    } else {
      clock_.AdvanceTo(next_ns);
      WatchGaps();
      loop_.RunNext();
    }
  }
  clock_.AdvanceTo(end_ns);
}

void World::Finish() {
  finishing_ = true;
  for (const auto& process : processes_) process->Kill();
  RunUntil(now_ns() + 2'000'000'000);
}

void World::Await(Thread* thread, simgpu::Handle handle, Wait::Kind kind) {
  const Wait wait{kind, thread, handle};
  if (IsOver(wait)) {
    thread->WakeAt(now_ns());
  } else {
    waits_.push_back(wait);
  }
}

bool World::IsOver(const Wait& wait) {
  switch (wait.kind) {
    case Wait::kEvent:
      return machine_->QueryEvent(wait.handle) != simgpu::Code::kNotReady;
    case Wait::kContext:
      return machine_->QueryContext(wait.handle) != simgpu::Code::kNotReady;
    case Wait::kStream:
      return machine_->QueryStream(wait.handle) != simgpu::Code::kNotReady;
    case Wait::kRoom:
      return machine_->WaitForRoom(wait.handle, simgpu::Machine::kMaxBatch, now_ns()) !=
             simgpu::Code::kTimedOut;
  }
  return true;
}

void World::WakeWaiters() {
  for (size_t i = 0; i < waits_.size();) {
    if (!IsOver(waits_[i])) {
      ++i;
      continue;
    }
    waits_[i].thread->WakeAt(now_ns() + options_.delays.Wake(random_));
    waits_.erase(waits_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void World::ForgetWaits(Thread* thread) {
  std::erase_if(waits_, [thread](const Wait& wait) { return wait.thread == thread; });
}

// --- Judging ------------------------------------------------------------------------------------

void World::Trace(const char* what, uint32_t who, int64_t value) {
  if (options_.trace == nullptr) return;
  *options_.trace << now_ns() << ' ' << what << ' ' << who << ' ' << value << '\n';
}

void World::Fail(const std::string& what) {
  if (!options_.check || !failure_.empty()) return;
  failure_ = "at " + std::to_string(static_cast<double>(now_ns()) / 1e6) + " ms: " + what;
}

int64_t World::ProgramBusyNs(size_t spec) const {
  int64_t sum = 0;
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (spec_of_[i] == spec) sum += processes_[i]->BusyNs();
  }
  return sum;
}

int64_t World::DeviceBusyNs() {
  int64_t sum = 0;
  for (int device = 0; device < machine_->device_count(); ++device) {
    sum += machine_->Usage(device)->busy_ns;
  }
  return sum / machine_->device_count();
}

int64_t World::DeviceSwitchingNs() {
  int64_t sum = 0;
  for (int device = 0; device < machine_->device_count(); ++device) {
    sum += machine_->Usage(device)->switching_ns;
  }
  return sum / machine_->device_count();
}

int64_t World::DeviceUsedNs(int device) {
  const auto usage = machine_->Usage(device);
  return usage->busy_ns + usage->switching_ns;
}

// Who is held by its own limit does not count.
void World::WatchGaps() {
  if (!options_.watch_gaps) return;
  const bool waits = std::any_of(processes_.begin(), processes_.end(), [](const auto& process) {
    return process->alive() && process->waits_for_lease() &&
           process->share()->spec.compute.limit >= Fraction::One();
  });
  gaps_.Step(now_ns(), DeviceBusyNs(), waits);
}

// The short gaps that a program leaves while it holds the device are nobody else's.
void World::WatchIdleness() {
  if (agent_ == nullptr || !options_.check) return;
  constexpr int64_t kShortNs = 1'000'000;
  idle_.resize(static_cast<size_t>(machine_->device_count()));
  for (size_t device = 0; device < idle_.size(); ++device) {
    Idleness& idle = idle_[device];
    const int64_t used_ns = DeviceUsedNs(static_cast<int>(device));
    idle.stretch_ns += now_ns() - idle.seen_ns - (used_ns - idle.used_ns);
    if (used_ns > idle.used_ns) {
      idle.long_ns += std::max<int64_t>(0, idle.stretch_ns - kShortNs);
      if (idle.stretch_ns >= 100'000) {
        Trace("was idle for us", static_cast<uint32_t>(device), idle.stretch_ns / 1000);
      }
      idle.stretch_ns = 0;
    }
    idle.seen_ns = now_ns();
    idle.used_ns = used_ns;
  }
}

// What the shares with a limit, and all under a ceiling, have to pay back of what they truly used:
// they wait for that.
void World::WatchDebts() {
  std::map<std::pair<const SimulatedShare*, int>, int64_t> busy_ns;
  for (const auto& process : processes_) {
    const int64_t ns = process->BusyNs();
    busy_ns[{process->share(), process->device()}] += ns;
  }
  // A ceiling is one of the device's use: while it switches between contexts nobody else could run.
  for (int device = 0; device < machine_->device_count(); ++device) {
    busy_ns[{nullptr, device}] = DeviceUsedNs(device);
  }
  for (const auto& [of, ns] : busy_ns) {
    const Fraction limit =
        of.first == nullptr ? scenario_.elastic_ceiling : of.first->spec.compute.limit;
    Debt& debt = debts_[of];
    const auto paid_ns =
        static_cast<int64_t>(static_cast<double>(now_ns() - debt.seen_ns) * limit.value());
    debt.ns = std::max<int64_t>(0, debt.ns + ns - debt.busy_ns - paid_ns);
    debt.busy_ns = ns;
    debt.seen_ns = now_ns();
  }
}

// A share that runs on all its devices at the same time waits for each of them.
bool World::PaysBack(const Process& process) {
  const std::vector<int>& devices = process.share()->spec.devices;
  return std::any_of(devices.begin(), devices.end(), [&](int device) {
    return debts_[{process.share(), device}].ns > 0 || debts_[{nullptr, device}].ns > 0;
  });
}

// Where another of higher priority is always busy it has one slice in two seconds.
bool World::IsBelowAnother(const Process& process) const {
  const ShareSpec& spec = process.share()->spec;
  return std::any_of(processes_.begin(), processes_.end(), [&](const auto& other) {
    return other->alive() && other->share()->spec.compute.priority > spec.compute.priority &&
           std::find(spec.devices.begin(), spec.devices.end(), other->device()) !=
               spec.devices.end();
  });
}

// Nobody waits for ever while the device idles: who is stopped, or lied, or pays back does not
// count, nor does the time in which the agent is stopped or dead.
void World::WatchWaiting() {
  if (agent_ == nullptr) return;
  WatchIdleness();
  WatchDebts();
  const bool trouble = !agent_->alive() || agent_->troubled_until_ns() > now_ns();
  for (size_t i = 0; i < processes_.size(); ++i) {
    Process& process = *processes_[i];
    const Idleness& idle = idle_[static_cast<size_t>(process.device())];
    const int64_t idle_ns = idle.long_ns + idle.stretch_ns;
    const bool counts = process.alive() && process.waits_for_lease() && !trouble &&
                        process.stopped_until_ns() <= now_ns() && process.connected() &&
                        !process.lied() && !PaysBack(process);
    process.WatchIdle(counts, idle_ns);
    const int64_t most_ns = kLongestIdleNs + (IsBelowAnother(process) ? kStarvedNs : 0);
    if (counts && process.idle_while_waiting_ns(idle_ns) > most_ns) {
      Fail("program " + std::to_string(i) + " waits for its lease while the device idles");
    }
  }
}

}  // namespace prorata::simulation
