#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <fstream>
#include <random>
#include <thread>

#include "simgpu/core/test_support.h"

// Several real processes on one machine.

namespace prorata::simgpu {
namespace {

class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe(fds_), 0); }
  ~Pipe() {
    close(fds_[0]);
    close(fds_[1]);
  }
  void Signal() { EXPECT_EQ(write(fds_[1], "x", 1), 1); }
  void Await() {
    char byte;
    EXPECT_EQ(read(fds_[0], &byte, 1), 1);
  }

 private:
  int fds_[2];
};

struct Guest {
  Handle process;
  Handle context;
  Handle stream;
};

Guest Enter(Machine& machine) {
  Guest guest{};
  guest.process = machine.RegisterProcess().value();
  guest.context = machine.CreateContext(guest.process, 0).value();
  guest.stream = machine.CreateStream(guest.context, StreamKind::kBlocking).value();
  return guest;
}

TEST(SharedMachineTest, MemoryOfAKilledProcessIsFreeAtOnceAndItsPidWasKnown) {
  const StateFolder folder;
  const auto observer = AttachOrFail(SmallMachine(), folder.path());
  Pipe ready;
  const pid_t child = Spawn([&] {
    auto machine = *Machine::Attach(SmallMachine(), folder.path());
    const Guest guest = Enter(*machine);
    machine->AllocSlabs(guest.context, 64 * kMiB).value();
    ready.Signal();
    pause();
  });
  ready.Await();
  DeviceUsage usage = *observer->Usage(0);
  ASSERT_EQ(usage.processes.size(), 1u);
  EXPECT_EQ(usage.processes[0].pid, child);
  EXPECT_EQ(usage.processes[0].used_bytes, 80 * kMiB);
  kill(child, SIGKILL);
  Join(child);
  usage = *observer->Usage(0);
  EXPECT_EQ(usage.used_bytes, 0u);
  EXPECT_TRUE(usage.processes.empty());
}

TEST(SharedMachineTest, SlabsAreSharedMemoryAndReadAsZerosWhenHandedOutAgain) {
  const StateFolder folder;
  const auto machine = AttachOrFail(SmallMachine(), folder.path());
  const Guest guest = Enter(*machine);
  const uint64_t slab = machine->device(0).slab_bytes;
  const uint64_t all = (*machine->MemInfo(0)).free_bytes;
  for (int round = 0; round < 2; ++round) {
    const auto extents = machine->AllocSlabs(guest.context, all).value();
    for (const Extent& extent : extents) {
      auto* bytes =
          static_cast<char*>(mmap(nullptr, extent.length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                                  machine->memory_fd(0), static_cast<off_t>(extent.offset_bytes)));
      ASSERT_NE(bytes, MAP_FAILED);
      for (uint64_t at = 0; at < extent.length_bytes; at += slab) {
        ASSERT_EQ(bytes[at], 0);
        bytes[at] = 'x';
      }
      munmap(bytes, extent.length_bytes);
    }
    ASSERT_EQ(machine->FreeSlabs(guest.context, extents), Code::kOk);
  }
}

TEST(SharedMachineTest, AnotherConfigurationIsRefusedWhileSomebodyLives) {
  const StateFolder folder;
  MachineConfig other = SmallMachine();
  other.devices[0].memory_bytes *= 2;
  const auto observer = AttachOrFail(SmallMachine(), folder.path());
  Pipe ready;
  const pid_t child = Spawn([&] {
    auto machine = *Machine::Attach(SmallMachine(), folder.path());
    Enter(*machine);
    ready.Signal();
    pause();
  });
  ready.Await();
  const auto refused = Machine::Attach(other, folder.path());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, "sim_config");
  EXPECT_NE(refused.error().message.find(folder.path()), std::string::npos);
  EXPECT_FALSE(observer->retired());
  kill(child, SIGKILL);
  Join(child);
  const auto remade = AttachOrFail(other, folder.path());
  ASSERT_TRUE(remade);
  EXPECT_EQ((*remade->MemInfo(0)).total_bytes, 512 * kMiB);
  EXPECT_TRUE(observer->retired()) << "an observer must learn that its machine is history";
}

TEST(SharedMachineTest, TheRegisteredProcessItselfIsNeverTakenForDead) {
  const StateFolder folder;
  const auto machine = AttachOrFail(SmallMachine(), folder.path());
  const Guest guest = Enter(*machine);
  {
    // As the NVML library in the same process would: comes, looks and goes.
    const auto observer = AttachOrFail(SmallMachine(), folder.path());
    observer->Reap();
    ASSERT_EQ((*observer->Usage(0)).processes.size(), 1u);
    EXPECT_EQ((*observer->Usage(0)).processes[0].pid, getpid());
  }
  const pid_t child = Spawn([&] {
    auto other = *Machine::Attach(SmallMachine(), folder.path());
    _exit((*other->Usage(0)).processes.size() == 1 ? 0 : 1);
  });
  EXPECT_EQ(Join(child), 0) << "the record lock went with the observer's descriptor";
  EXPECT_EQ(machine->QueryStream(guest.stream), Code::kOk);
}

TEST(SharedMachineTest, AForkedChildKeepsNothingAlive) {
  const StateFolder folder;
  const auto observer = AttachOrFail(SmallMachine(), folder.path());
  Pipe ready;
  const pid_t parent = Spawn([&] {
    auto machine = *Machine::Attach(SmallMachine(), folder.path());
    Enter(*machine);
    if (fork() == 0) {
      ready.Signal();
      sleep(3);
      _exit(0);
    }
    pause();
  });
  ready.Await();
  EXPECT_EQ((*observer->Usage(0)).processes.size(), 1u);
  kill(parent, SIGKILL);
  Join(parent);
  EXPECT_EQ((*observer->Usage(0)).used_bytes, 0u);
}

TEST(SharedMachineTest, WaitsEndSoonAfterTheWorkAndCostLittle) {
  const StateFolder folder;
  const auto observer = AttachOrFail(SmallMachine(), folder.path());
  constexpr int kKernels = 100;
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(Spawn([&] {
      auto machine = *Machine::Attach(SmallMachine(), folder.path());
      const Guest guest = Enter(*machine);
      for (int k = 0; k < kKernels; ++k) {
        machine->Submit(guest.stream, Work::Kernel(kNsPerMs)).value();
        if (machine->WaitStream(guest.stream) != Code::kOk) _exit(1);
      }
      if (machine->ContextBusyNs(guest.context).value() != kKernels * kNsPerMs) _exit(2);
      rusage used{};
      getrusage(RUSAGE_SELF, &used);
      const int64_t cpu_us = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1'000'000 +
                             used.ru_utime.tv_usec + used.ru_stime.tv_usec;
      // A waiter that spins would take all of the 300 ms.
      _exit(cpu_us < 100'000 ? 0 : 3);
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(Join(child), 0);
  EXPECT_EQ((*observer->Usage(0)).busy_ns, 3 * kKernels * kNsPerMs);
}

TEST(SharedMachineTest, TheExecutorIsWokenAndSoIsWhoWaitsForIt) {
  const StateFolder folder;
  const auto machine = AttachOrFail(SmallMachine(), folder.path());
  const Guest guest = Enter(*machine);
  int ran = 0;
  std::thread executor([&] {
    for (;;) {
      const auto action = machine->NextAction(guest.process);
      if (!action) {
        EXPECT_EQ(action.error(), Code::kShutdown);
        return;
      }
      ++ran;
      EXPECT_EQ(machine->CompleteAction(*action), Code::kOk);
    }
  });
  for (int i = 0; i < 50; ++i) {
    const Work work[] = {Work::Kernel(200 * kNsPerUs, 1'000'000, 1), Work::Host(2)};
    machine->Submit(guest.stream, work).value();
    const int64_t deadline_ns = machine->NowNs() + 5 * kNsPerS;
    ASSERT_EQ(machine->WaitStream(guest.stream, UINT64_MAX, deadline_ns), Code::kOk);
  }
  machine->WakeExecutor(true);
  executor.join();
  EXPECT_EQ(ran, 100);
}

// One member of the storm: makes and destroys everything at random until it is killed.
[[noreturn]] void Rampage(const std::string& folder, unsigned seed) {
  std::minstd_rand random(seed);
  auto attached = Machine::Attach(SmallMachine(), folder);
  if (!attached) _exit(1);
  Machine& machine = **attached;
  const auto process = machine.RegisterProcess();
  if (!process) _exit(2);
  for (;;) {
    const auto context = machine.CreateContext(*process, 0);
    if (!context) continue;
    const Handle stream = machine.CreateStream(*context, StreamKind::kBlocking).value();
    const Handle legacy = machine.CreateStream(*context, StreamKind::kLegacy).value();
    const Handle event = machine.CreateEvent(*context).value();
    std::vector<std::vector<Extent>> held;
    for (int i = 0; i < 200; ++i) {
      switch (random() % 7) {
        case 0:
        case 1:
          if (auto extents = machine.AllocSlabs(*context, (random() % 20 + 1) * kMiB)) {
            held.push_back(std::move(*extents));
          }
          break;
        case 2:
          if (!held.empty()) {
            if (machine.FreeSlabs(*context, held.back()) != Code::kOk) _exit(3);
            held.pop_back();
          }
          break;
        case 3: {
          const Work work[] = {Work::Kernel(random() % 100'000, 300'000, random() % 2),
                               Work::Record(event)};
          machine.Submit(random() % 2 ? stream : legacy, work).value();
          break;
        }
        case 4:
          machine.Submit(stream, Work::WaitFor(event)).value();
          machine.Submit(stream, Work::Copy(WorkKind::kCopyToDevice, 100'000)).value();
          break;
        case 5:
          while (const auto action = machine.NextAction(*process, 0)) {
            if (machine.CompleteAction(*action) != Code::kOk) _exit(5);
          }
          break;
        default:
          machine.WaitEvent(event, machine.NowNs() + kNsPerMs);
      }
    }
    if (machine.DestroyContext(*context) != Code::kOk) _exit(4);
  }
}

TEST(SharedMachineTest, AKillStormLosesNothing) {
  const StateFolder folder;
  const auto observer = AttachOrFail(SmallMachine(), folder.path());
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::minstd_rand random(seed);
  std::vector<pid_t> members;
  const auto start = [&] {
    const unsigned member_seed = static_cast<unsigned>(random());
    return Spawn([&] { Rampage(folder.path(), member_seed); });
  };
  for (int i = 0; i < 6; ++i) members.push_back(start());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  int kills = 0;
  while (std::chrono::steady_clock::now() < end) {
    usleep(random() % 8000);
    pid_t& member = members[random() % members.size()];
    kill(member, SIGKILL);
    ASSERT_EQ(Join(member), -SIGKILL) << "a member ended by itself";
    ++kills;
    ASSERT_EQ(observer->CheckInvariants(), "") << "after kill " << kills;
    member = start();
  }
  for (const pid_t member : members) kill(member, SIGKILL);
  for (const pid_t member : members) EXPECT_EQ(Join(member), -SIGKILL);
  const auto before = std::chrono::steady_clock::now();
  const DeviceUsage usage = *observer->Usage(0);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
  EXPECT_EQ(usage.used_bytes, 0u);
  EXPECT_TRUE(usage.processes.empty());
  EXPECT_EQ(observer->CheckInvariants(), "");
  // All of it can be had again.
  const Guest guest = Enter(*observer);
  EXPECT_TRUE(observer->AllocSlabs(guest.context, usage.total_bytes - 16 * kMiB));
  EXPECT_GT(kills, 50);
}

}  // namespace
}  // namespace prorata::simgpu
