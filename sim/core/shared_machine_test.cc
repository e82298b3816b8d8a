#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <thread>

#include "sim/core/test_support.h"

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
  void Send(pid_t pid) { EXPECT_EQ(write(fds_[1], &pid, sizeof pid), ssize_t{sizeof pid}); }
  pid_t Hear() {
    pid_t pid = 0;
    EXPECT_EQ(read(fds_[0], &pid, sizeof pid), ssize_t{sizeof pid});
    return pid;
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
  EXPECT_EQ(usage.peak_bytes, 80 * kMiB) << "what nobody looked at is remembered";
}

TEST(SharedMachineTest, ThePeakIsOfAllTogetherAndStays) {
  const StateFolder folder;
  const auto machine = AttachOrFail(SmallMachine(), folder.path());
  EXPECT_EQ(machine->Usage(0)->peak_bytes, 0u);
  const Guest guest = Enter(*machine);
  const auto first = machine->AllocSlabs(guest.context, 64 * kMiB).value();
  const auto second = machine->AllocSlabs(guest.context, 32 * kMiB).value();
  EXPECT_EQ(machine->Usage(0)->peak_bytes, 112 * kMiB);
  ASSERT_EQ(machine->FreeSlabs(guest.context, first), Code::kOk);
  ASSERT_EQ(machine->FreeSlabs(guest.context, second), Code::kOk);
  EXPECT_EQ(machine->Usage(0)->used_bytes, 16 * kMiB);
  machine->AllocSlabs(guest.context, 80 * kMiB).value();
  EXPECT_EQ(machine->Usage(0)->peak_bytes, 112 * kMiB);
  machine->AllocSlabs(guest.context, 32 * kMiB).value();
  EXPECT_EQ(machine->Usage(0)->peak_bytes, 128 * kMiB);
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
      ready.Send(getpid());
      sleep(600);  // longer than this test may take
      _exit(0);
    }
    pause();
  });
  const pid_t left = ready.Hear();
  EXPECT_EQ((*observer->Usage(0)).processes.size(), 1u);
  kill(parent, SIGKILL);
  Join(parent);
  EXPECT_EQ((*observer->Usage(0)).used_bytes, 0u);
  EXPECT_EQ(kill(left, SIGKILL), 0) << "the child was not there any more";
}

// Runs `body` in a forked child that gets the pid `pid`; 0 when the system does not let us choose.
pid_t SpawnAs(pid_t pid, const std::function<void()>& body) {
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<uint64_t>(&pid);
  arguments.set_tid_size = 1;
  const auto child = static_cast<pid_t>(syscall(SYS_clone3, &arguments, sizeof arguments));
  if (child < 0) return 0;
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  body();
  _exit(0);
}

// Pids come round. Forked from the same program without an exec, the new one was the dead one in
// all that was compared, and nobody with its pid ever buried it.
TEST(SharedMachineTest, AnotherChildOfTheSameProgramWithTheSamePidIsNotTheDeadOne) {
  const StateFolder folder;
  const auto observer = AttachOrFail(SmallMachine(), folder.path());
  const pid_t pid = Spawn([] {});
  Join(pid);
  const pid_t first = SpawnAs(pid, [&] {
    auto machine = *Machine::Attach(SmallMachine(), folder.path());
    Enter(*machine);
    kill(getpid(), SIGKILL);
  });
  if (first == 0) GTEST_SKIP() << "the system lets nobody choose a pid (clone3 with set_tid)";
  ASSERT_EQ(Join(first), -SIGKILL);
  // Two processes of one pid that began in one tick of the kernel's clock cannot be told apart.
  usleep(2'000'000 / static_cast<unsigned>(sysconf(_SC_CLK_TCK)));
  const pid_t second = SpawnAs(pid, [&] {
    auto machine = *Machine::Attach(SmallMachine(), folder.path());
    _exit(machine->Usage(0)->processes.empty() ? 0 : 1);
  });
  ASSERT_NE(second, 0);
  EXPECT_EQ(Join(second), 0) << "it took the dead one for itself";
}

// CPU time of this process so far: it does not grow while others are run in its place.
int64_t CpuUs() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1'000'000 + used.ru_utime.tv_usec +
         used.ru_stime.tv_usec;
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
      const int64_t before_us = CpuUs();
      for (int k = 0; k < kKernels; ++k) {
        machine->Submit(guest.stream, Work::Kernel(kNsPerMs)).value();
        if (machine->WaitStream(guest.stream) != Code::kOk) _exit(1);
      }
      if (machine->ContextBusyNs(guest.context).value() != kKernels * kNsPerMs) _exit(2);
      const int64_t cpu_us = CpuUs() - before_us;
      // A waiter that spins would take all of the 300 ms.
      _exit(cpu_us < 100'000 ? 0 : 3);
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(Join(child), 0);
  EXPECT_EQ((*observer->Usage(0)).busy_ns, int64_t{3} * kKernels * kNsPerMs);
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
    const int64_t deadline_ns = machine->NowNs() + 120 * kNsPerS;
    ASSERT_EQ(machine->WaitStream(guest.stream, UINT64_MAX, deadline_ns), Code::kOk);
  }
  machine->WakeExecutor(true);
  executor.join();
  EXPECT_EQ(ran, 100);
}

// As a program that makes a daemon of itself does. Its own GPU may be gone then, as it is on a real
// driver; the others' must be whole, and none of its files may be taken for one of the machine's.
TEST(SharedMachineTest, AProgramThatClosesAllDescriptorsHarmsNobody) {
  const StateFolder folder;
  const auto observer = AttachOrFail(SmallMachine(), folder.path());
  const pid_t child = Spawn([&] {
    auto machine = *Machine::Attach(SmallMachine(), folder.path());
    const Guest guest = Enter(*machine);
    const auto extents = machine->AllocSlabs(guest.context, 8 * kMiB).value();
    if (pwrite(machine->memory_fd(0), "x", 1, static_cast<off_t>(extents[0].offset_bytes)) != 1) {
      _exit(1);
    }
    close_range(3, ~0u, 0);
    // The numbers go to files of the program's own.
    char name[] = "/dev/shm/prorata-sim-test-own-XXXXXX";
    const int own = mkstemp(name);
    unlink(name);
    if (ftruncate(own, 16 * kMiB) != 0) _exit(2);
    for (int i = 0; i < 20; ++i) dup(own);
    std::vector<char> bytes(4096, 'y');
    if (pwrite(own, bytes.data(), bytes.size(), 0) != 4096) _exit(3);
    // Whatever they answer.
    [[maybe_unused]] const auto submitted = machine->Submit(guest.stream, Work::Kernel(1000));
    machine->FreeSlabs(guest.context, extents);
    [[maybe_unused]] const auto usage = machine->Usage(0);
    [[maybe_unused]] const auto more = machine->AllocSlabs(guest.context, 8 * kMiB);
    machine->DestroyContext(guest.context);
    char byte = 0;
    if (pread(own, &byte, 1, 0) != 1 || byte != 'y') _exit(4);
    struct flock lock{};
    lock.l_type = F_WRLCK;
    if (fcntl(own, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) _exit(5);
    _exit(0);
  });
  EXPECT_EQ(Join(child), 0);
  EXPECT_EQ(observer->CheckInvariants(), "");
  EXPECT_EQ(observer->Usage(0)->used_bytes, 0u);
  struct stat info{};
  ASSERT_EQ(fstat(observer->memory_fd(0), &info), 0);
  EXPECT_EQ(info.st_blocks, 0) << "its bytes are left in free memory";
}

}  // namespace
}  // namespace prorata::simgpu
