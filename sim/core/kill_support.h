#pragma once

#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdint>
#include <new>
#include <vector>

#include "sim/core/model/steps.h"
#include "sim/core/test_support.h"

namespace prorata::simgpu {

// How many processes were killed at each kind of step; in memory that forked children share.
class Census {
 public:
  static Census* Make() {
    return new (mmap(nullptr, sizeof(Census), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                     -1, 0)) Census;
  }
  void Count(Step step) { at_[static_cast<size_t>(step)].fetch_add(1); }
  uint32_t At(Step step) const { return at_[static_cast<size_t>(step)].load(); }
  // The most steps of a kind that a process which ran through has counted, since the last Reset.
  void ResetMost() {
    for (auto& most : most_) most.store(0);
  }
  void RanThrough(Step step, int count) {
    auto& most = most_[static_cast<size_t>(step)];
    if (count > most.load()) most.store(count);
  }
  int Most(Step step) const { return most_[static_cast<size_t>(step)].load(); }
  uint64_t Total() const {
    uint64_t total = 0;
    for (const auto& count : at_) total += count.load();
    return total;
  }

 private:
  std::atomic<uint32_t> at_[static_cast<size_t>(Step::kCount)] = {};
  std::atomic<int> most_[static_cast<size_t>(Step::kCount)] = {};
};

// Made before anybody forks.
inline Census& g_census = *Census::Make();
// The n-th step of a kind, or of any kind (kCount).
struct KillAt {
  Step kind = Step::kCount;
  int n = 0;
};

inline KillAt g_kill_at;
// Atomic: a process under test may have an executor's thread.
inline std::atomic<int> g_steps[static_cast<size_t>(Step::kCount)] = {};
inline std::atomic<int> g_all_steps = 0;

// This process, from now on, is killed there.
inline void DieAt(KillAt kill_at) {
  g_kill_at = kill_at;
  for (auto& steps : g_steps) steps = 0;
  g_all_steps = 0;
  g_step = [](Step at) {
    const int n = ++g_steps[static_cast<size_t>(at)];
    const int all = ++g_all_steps;
    if (g_kill_at.kind == Step::kCount ? all != g_kill_at.n
                                       : at != g_kill_at.kind || n != g_kill_at.n) {
      return;
    }
    g_census.Count(at);
    kill(getpid(), SIGKILL);
    for (;;) pause();
  };
}

inline constexpr int kRanThrough = 42;  // exit status of a process that was not killed

[[noreturn]] inline void RanThrough() {
  g_step = nullptr;
  for (size_t i = 0; i < static_cast<size_t>(Step::kCount); ++i) {
    g_census.RanThrough(static_cast<Step>(i), g_steps[i]);
  }
  _exit(kRanThrough);
}

// Calls `attempt` for the first, second, ... step of every kind until they are used up: it forks a
// process that dies there, and returns what Join gave. By kind, for how many steps an operation
// takes varies with what the clock has to say between: counted over all kinds, one that comes once
// could be missed. With a sanitizer every seventh only. Gives the number of steps.
inline int ForEachStep(const std::function<int(KillAt)>& attempt) {
#ifdef PRORATA_SANITIZED
  constexpr int kStride = 7;  // a fork costs ten times as much
#else
  constexpr int kStride = 1;
#endif
  g_census.ResetMost();
  int steps = 0;
  for (size_t i = 0; i < static_cast<size_t>(Step::kCount); ++i) {
    const auto kind = static_cast<Step>(i);
    for (int n = 1;; n += kStride) {
      const int status = attempt({kind, n});
      if (status != -SIGKILL && status != kRanThrough) {
        ADD_FAILURE() << "status " << status << " at step " << i << ", time " << n;
      }
      if (::testing::Test::HasFailure() || n > 2000) return steps;
      if (status == -SIGKILL) ++steps;
      if (status == kRanThrough && n > g_census.Most(kind)) break;
    }
  }
  return steps;
}

inline std::string Text(KillAt at) {
  return "step " + std::to_string(static_cast<int>(at.kind)) + ", time " + std::to_string(at.n);
}

// Writes a byte into each extent: what nobody else may ever read.
inline void Soil(const Machine& machine, int device, const std::vector<Extent>& extents) {
  for (const Extent& extent : extents) {
    const off_t last = static_cast<off_t>(extent.offset_bytes + extent.length_bytes - 1);
    if (pwrite(machine.memory_fd(device), "x", 1, last) != 1) _exit(6);
  }
}

// What a victim has before it is killed: some of everything.
struct Victim {
  std::unique_ptr<Machine> machine;
  Handle process = 0;
  Handle context = 0;
  Handle stream = 0;
  Handle legacy = 0;
  Handle event = 0;
  std::vector<Extent> extents;
};

inline Victim MakeVictim(const MachineConfig& config, const std::string& folder) {
  Victim victim;
  auto machine = Machine::Attach(config, folder);
  if (!machine) _exit(1);
  victim.machine = std::move(*machine);
  Machine& m = *victim.machine;
  victim.process = m.RegisterProcess().value();
  victim.context = m.CreateContext(victim.process, 0).value();
  victim.stream = m.CreateStream(victim.context, StreamKind::kBlocking).value();
  victim.legacy = m.CreateStream(victim.context, StreamKind::kLegacy).value();
  victim.event = m.CreateEvent(victim.context).value();
  victim.extents = m.AllocSlabs(victim.context, 20 * kMiB).value();
  Soil(m, 0, victim.extents);
  // The first is soon over and left behind: every reap finds an action of a kernel.
  const Work work[] = {Work::Kernel(1000, 1'000'000, 5), Work::Kernel(kNsPerS),
                       Work::Record(victim.event), Work::Host(7)};
  m.Submit(victim.stream, work).value();
  m.Submit(victim.legacy, Work::WaitFor(victim.event)).value();
  return victim;
}

// Empty, or what is wrong with a machine on which every process but the asker's own is dead: it
// must be whole, and all memory there to be had again.
inline std::string WrongAfterKill(Machine& observer) {
  std::string broken = observer.CheckInvariants();
  if (!broken.empty()) return "torn: " + broken;
  for (int device = 0; device < observer.device_count(); ++device) {
    const DeviceUsage usage = *observer.Usage(device);
    if (usage.used_bytes != 0 || !usage.processes.empty()) {
      return std::to_string(usage.used_bytes) + " bytes of device " + std::to_string(device) +
             " lost, " + std::to_string(usage.processes.size()) + " dead processes not buried";
    }
    struct stat info{};
    fstat(observer.memory_fd(device), &info);
    if (info.st_blocks != 0) return "bytes of the dead are left in free memory";
  }
  broken = observer.CheckInvariants();
  return broken.empty() ? "" : "torn by the reaping: " + broken;
}

}  // namespace prorata::simgpu
