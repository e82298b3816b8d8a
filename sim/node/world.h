#pragma once

// The one-process simulation: the simulated GPU's core on a virtual clock, the agent's decisions
// and the client library's machines, driven by one event loop and one seed. What is product code
// and what stands for the rest of the world: docs/design/simulation.md.

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/machine.h"
#include "sim/node/agent.h"
#include "sim/node/delays.h"
#include "sim/node/event_loop.h"
#include "sim/node/gaps.h"
#include "sim/node/process.h"
#include "sim/node/scenario.h"

namespace prorata::simulation {

class World;

struct WorldOptions {
  uint64_t seed = 1;
  Delays delays;
  Delays agent_delays;  // the agent's own: it may have a processor where programs wait for one
  Mishaps mishaps;
  std::ostream* trace = nullptr;
  std::function<void(World&)> at_end =
      {};             // of a scenario: its time is over, its programs still run
  bool check = true;  // the properties of properties.h, while it runs
  bool watch_gaps = false;
  bool keep_shares = false;        // until the end; else a share ends with its last member
  std::string policy = "default";  // one of PolicyNames()
};

inline WorldOptions WithSeed(uint64_t seed) {
  WorldOptions options;
  options.seed = seed;
  return options;
}

class World {
 public:
  // `scenario` must outlive it.
  World(const Scenario& scenario, const WorldOptions& options);
  ~World();

  void RunUntil(int64_t end_ns);
  // Ends all programs that still run, and lets what they queued come to its end.
  void Finish();

  int64_t now_ns() const { return clock_.NowNs(); }
  EventLoop& loop() { return loop_; }
  simgpu::Machine& machine() { return *machine_; }
  Agent* agent() { return agent_.get(); }  // null: without prorata
  const Delays& delays() const { return options_.delays; }
  const Delays& agent_delays() const { return options_.agent_delays; }
  const std::string& policy() const { return options_.policy; }
  Random& random() { return random_; }
  uint64_t seed() const { return options_.seed; }
  const Scenario& scenario() const { return scenario_; }
  const std::vector<std::unique_ptr<Process>>& processes() const { return processes_; }
  uint64_t events() const { return loop_.events() + core_events_; }

  // The thread wakes when the device has got there.
  void AwaitEvent(Thread* thread, simgpu::Handle event) { Await(thread, event, Wait::kEvent); }
  void AwaitContext(Thread* thread, simgpu::Handle context) {
    Await(thread, context, Wait::kContext);
  }
  void AwaitStream(Thread* thread, simgpu::Handle stream) { Await(thread, stream, Wait::kStream); }
  void AwaitRoom(Thread* thread, simgpu::Handle stream) { Await(thread, stream, Wait::kRoom); }
  void ForgetWaits(Thread* thread);
  void Ended(const Process& process);  // by itself
  void CoreTouched() { core_next_ns_ = -1; }

  bool tracing() const { return options_.trace != nullptr; }
  void Trace(const char* what, uint32_t who, int64_t value = 0);

  // Device time of program `spec` of the scenario, by the core's own account; all instances.
  int64_t ProgramBusyNs(size_t spec) const;
  // The mean of all devices; and of one.
  int64_t DeviceBusyNs();
  int64_t DeviceSwitchingNs();
  int64_t DeviceUsedNs(int device);  // busy or switching
  const std::vector<GapWatch::Gap>& gaps() const { return gaps_.gaps(); }
  // The first property that failed, in words.
  const std::string& failure() const { return failure_; }
  void Fail(const std::string& what);

 private:
  struct Wait {
    enum Kind : uint8_t { kEvent, kContext, kStream, kRoom } kind;
    Thread* thread;
    simgpu::Handle handle;
  };
  class Launcher;
  class Updater;
  class Mischief;

  void Await(Thread* thread, simgpu::Handle handle, Wait::Kind kind);
  bool IsOver(const Wait& wait);
  void WakeWaiters();
  void StartProgram(size_t spec);
  void WatchIdleness();
  void WatchWaiting();
  void WatchDebts();
  bool PaysBack(const Process& process);
  bool IsBelowAnother(const Process& process) const;
  void WatchGaps();

  const Scenario& scenario_;
  const WorldOptions options_;
  Random random_;
  VirtualClock clock_;
  std::unique_ptr<simgpu::Machine> machine_;
  EventLoop loop_;
  std::unique_ptr<Agent> agent_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<size_t> spec_of_;  // by process
  uint32_t groups_ = 0;
  std::vector<std::unique_ptr<Thread>> others_;
  std::vector<Wait> waits_;
  int64_t core_next_ns_ = -1;  // -1: to be asked
  uint64_t core_events_ = 0;
  bool finishing_ = false;
  struct Idleness {                    // of a device
    int64_t seen_ns = 0, used_ns = 0;  // when it was last looked at, and its used time then
    int64_t stretch_ns = 0;            // it has been idle for so long
    int64_t long_ns = 0;               // earlier stretches, but for the first millisecond of each
  };
  std::vector<Idleness> idle_;
  struct Debt {  // of a share on a device, by its limit; of no share: by the device's ceiling
    int64_t seen_ns = 0, busy_ns = 0, ns = 0;
  };
  std::map<std::pair<const SimulatedShare*, int>, Debt> debts_;
  GapWatch gaps_;
  std::string failure_;
};

}  // namespace prorata::simulation
