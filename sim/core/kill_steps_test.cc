#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>

#include "sim/core/kill_support.h"

// A process killed at any step of any change leaves a machine that is whole, from which everything
// it had can be freed, and on which others go on.

namespace prorata::simgpu {
namespace {

struct Case {
  const char* name;
  void (*run)(Victim&);
};

void Sleep2ms() { usleep(2000); }

void Run(Victim& v) {
  const Action action = v.machine->NextAction(v.process).value();
  if (v.machine->CompleteAction(action) != Code::kOk) _exit(4);
}

const Case kCases[] = {
    {"Register",
     [](Victim& v) {
       v.machine->UnregisterProcess(v.process);
       v.process = v.machine->RegisterProcess().value();
     }},
    {"CreateContext", [](Victim& v) { v.machine->CreateContext(v.process, 0).value(); }},
    {"Unregister", [](Victim& v) { v.machine->UnregisterProcess(v.process); }},
    {"SecondContext", [](Victim& v) { v.machine->CreateContext(v.process, 1).value(); }},
    {"DestroyContext", [](Victim& v) { v.machine->DestroyContext(v.context); }},
    {"AllocSlabs", [](Victim& v) { v.machine->AllocSlabs(v.context, 50 * kMiB).value(); }},
    {"FreeSlabs", [](Victim& v) { v.machine->FreeSlabs(v.context, v.extents); }},
    {"FreePart",
     [](Victim& v) {
       const Extent first{v.extents[0].offset_bytes, v.machine->device(0).slab_bytes};
       v.machine->FreeSlabs(v.context, {&first, 1});
     }},
    {"FreeAll", [](Victim& v) { v.machine->FreeAllSlabs(v.context); }},
    // The first of two extents is the victim's and the second is not: all is undone.
    {"RefusedFree",
     [](Victim& v) {
       const uint64_t slab = v.machine->device(0).slab_bytes;
       const Extent wrong[] = {v.extents[0], {100 * slab, slab}};
       if (v.machine->FreeSlabs(v.context, wrong) != Code::kInvalidValue) _exit(5);
     }},
    {"MoveSlabs",
     [](Victim& v) {
       const Handle heir = v.machine->CreateContext(v.process, 0).value();
       const uint64_t slab = v.machine->device(0).slab_bytes;
       const Extent& all = v.extents[0];
       const Extent first{all.offset_bytes, slab};
       const Extent rest{all.offset_bytes + slab, all.length_bytes - slab};
       if (v.machine->MoveSlabs(v.context, heir, {&first, 1}) != Code::kOk) _exit(5);
       if (v.machine->MoveSlabs(v.context, heir, {&rest, 1}) != Code::kOk) _exit(5);
       v.machine->DestroyContext(v.context);
       if (v.machine->FreeSlabs(heir, {&first, 1}) != Code::kOk) _exit(6);
       v.machine->DestroyContext(heir);
     }},
    {"RefusedMove",
     [](Victim& v) {
       const Handle heir = v.machine->CreateContext(v.process, 0).value();
       const uint64_t slab = v.machine->device(0).slab_bytes;
       const Extent wrong[] = {v.extents[0], {100 * slab, slab}};
       if (v.machine->MoveSlabs(v.context, heir, wrong) != Code::kInvalidValue) _exit(5);
     }},
    {"Descriptors",
     [](Victim& v) {
       const Handle share = v.machine->ShareSlabs(v.context, v.extents)->share;
       const int first = v.machine->ExportDescriptor(share).value();
       const int second = v.machine->ExportDescriptor(share).value();
       v.machine->DropShare(share);
       close(first);
       v.machine->Reap();  // the second holds it
       const Handle again = v.machine->ImportDescriptor(second, v.process)->share;
       close(second);
       v.machine->Reap();
       if (v.machine->DropShare(again) != Code::kOk) _exit(5);
     }},
    {"DropWork",
     [](Victim& v) {
       if (v.machine->DropWork(v.context) != Code::kOk) _exit(7);
     }},
    {"CreateStream",
     [](Victim& v) { v.machine->CreateStream(v.context, StreamKind::kNonBlocking).value(); }},
    {"DestroyStream", [](Victim& v) { v.machine->DestroyStream(v.stream); }},
    {"Events",
     [](Victim& v) {
       v.machine->CreateEvent(v.context).value();
       v.machine->DestroyEvent(v.event);
     }},
    {"Submit",
     [](Victim& v) {
       const Work work[] = {Work::Kernel(1000, 10'000), Work::Record(v.event),
                            Work::Copy(WorkKind::kCopyToDevice, 1 << 20), Work::Host(3)};
       v.machine->Submit(v.legacy, work).value();
     }},
    {"Advance",
     [](Victim& v) {
       const Handle stream =
           v.machine->CreateStream(v.context, StreamKind::kNonBlocking, -1).value();
       const Work work[] = {Work::Copy(WorkKind::kCopyToHost, 1000), Work::Record(v.event),
                            Work::Host(3)};
       v.machine->Submit(stream, work).value();
       Sleep2ms();
       Run(v);
       Run(v);
     }},
    {"Kernels",
     [](Victim& v) {
       const Handle context = v.machine->CreateContext(v.process, 0).value();
       const Handle stream = v.machine->CreateStream(context, StreamKind::kBlocking).value();
       const Work work[] = {Work::Kernel(1000, 10'000, 1), Work::Kernel(1000, 10'000, 2),
                            Work::Kernel(1000, 10'000, 3)};
       v.machine->Submit(stream, work).value();
       v.machine->DestroyStream(stream);
       Run(v);  // that of MakeVictim
       Run(v);
       v.machine->NextAction(v.process).value();
       v.machine->DestroyContext(context);
     }},
    {"Defer",
     [](Victim& v) {
       Run(v);
       const Handle stream = v.machine->CreateStream(v.context, StreamKind::kNonBlocking).value();
       v.machine->Submit(stream, Work::Host(3)).value();
       const Action action = v.machine->NextAction(v.process).value();
       if (v.machine->DeferAction(action) != Code::kOk) _exit(2);
       if (v.machine->CompleteAction(action) != Code::kOk) _exit(3);
       v.machine->QueryStream(stream);
     }},
    {"Wait",
     [](Victim& v) {
       v.machine->WaitStream(v.stream, 1, v.machine->NowNs() + kNsPerMs);
       Run(v);
     }},
};

// Who must be killed where, so that no kind of step is spared. A list that lost its steps, since
// the operations do not reach them any more, fails its test.
constexpr Step kStepsOfOperations[] = {
    Step::kBeforeLogged, Step::kLogged, Step::kCounted, Step::kBeforeCommit, Step::kCommitted,
    Step::kLocked, Step::kUnlocked, Step::kBeforeUnlocked, Step::kBeforeWiped, Step::kWiped,
    Step::kClaimed, Step::kReleased,
    // A refused call undoes itself.
    Step::kBeforeRestored, Step::kRestored, Step::kUncounted, Step::kDescriptorFile,
    Step::kDescriptorHeld, Step::kDescriptorDropped};
constexpr Step kStepsOfReaping[] = {Step::kBeforeLogged, Step::kLogged,         Step::kCounted,
                                    Step::kBeforeCommit, Step::kCommitted,      Step::kLocked,
                                    Step::kUnlocked,     Step::kBeforeUnlocked, Step::kBeforeWiped,
                                    Step::kWiped,        Step::kBeforeRestored, Step::kRestored,
                                    Step::kUncounted};
constexpr Step kStepsOfReplacing[] = {Step::kFolder,    Step::kGate,     Step::kRetired,
                                      Step::kOldGone,   Step::kFileGone, Step::kFileEmpty,
                                      Step::kFileSized, Step::kFilled,   Step::kShown};

template <size_t kSteps>
void ExpectKilledAt(const Step (&steps)[kSteps]) {
  for (const Step step : steps) {
    EXPECT_GT(g_census.At(step), 0u) << "nobody was killed at step " << static_cast<int>(step);
  }
  ::testing::Test::RecordProperty("kills", static_cast<int>(g_census.Total()));
  std::printf("%d kills\n", static_cast<int>(g_census.Total()));
}

TEST(KillTest, EveryKindOfStepIsInAList) {
  std::vector<bool> listed(static_cast<size_t>(Step::kCount));
  for (const Step step : kStepsOfOperations) listed[static_cast<size_t>(step)] = true;
  for (const Step step : kStepsOfReaping) listed[static_cast<size_t>(step)] = true;
  for (const Step step : kStepsOfReplacing) listed[static_cast<size_t>(step)] = true;
  for (size_t step = 0; step < listed.size(); ++step) EXPECT_TRUE(listed[step]) << "step " << step;
}

class Kill : public ::testing::Test {
 protected:
  // Kills a process at each step of `run`, one process per step.
  void AtEveryStep(const Case& tested) {
    SCOPED_TRACE(tested.name);
    const int steps = ForEachStep([&](KillAt at) {
      const pid_t child = Spawn([&] {
        Victim victim = MakeVictim(config_, folder_.path());
        DieAt(at);
        tested.run(victim);
        RanThrough();
      });
      const int status = Join(child);
      EXPECT_EQ(WrongAfterKill(*observer_), "") << "killed at " << Text(at);
      return status;
    });
    std::printf("%s: %d steps\n", tested.name, steps);
    if (HasFailure()) return;
    EXPECT_GT(steps, 8) << "the operation changed nothing";
  }

  StateFolder folder_;
  MachineConfig config_ = TwoDevices();
  std::unique_ptr<Machine> observer_ = AttachOrFail(config_, folder_.path());
};

TEST_F(Kill, AtEveryStepOfEveryOperation) {
  for (const Case& tested : kCases) {
    AtEveryStep(tested);
    if (HasFailure()) return;
  }
  ExpectKilledAt(kStepsOfOperations);
}

// A victim that dies in the middle of a change, with a second context, freed memory not wiped, a
// deferred action and a stream that is destroyed and not drained.
void DieInTheMiddle(const MachineConfig& config, const std::string& folder, int step) {
  Victim v = MakeVictim(config, folder);
  const Handle second = v.machine->CreateContext(v.process, 1).value();
  Soil(*v.machine, 1, v.machine->AllocSlabs(second, 8 * kMiB).value());
  const Handle stream = v.machine->CreateStream(v.context, StreamKind::kNonBlocking).value();
  v.machine->Submit(stream, Work::Host(3)).value();
  Run(v);
  const Action action = v.machine->NextAction(v.process).value();
  if (v.machine->DeferAction(action) != Code::kOk) _exit(2);
  v.machine->DestroyStream(v.stream);
  DieAt({Step::kCount, step});
  v.machine->FreeSlabs(v.context, v.extents);
  v.machine->AllocSlabs(v.context, 50 * kMiB).value();
  v.machine->DestroyContext(second);
  _exit(1);
}

// Whoever rolls back and buries may be killed too.
TEST_F(Kill, AtEveryStepOfReaping) {
  for (const int victim_step : {12, 40}) {
    const int steps = ForEachStep([&](KillAt at) {
      const pid_t victim = Spawn([&] { DieInTheMiddle(config_, folder_.path(), victim_step); });
      EXPECT_EQ(Join(victim), -SIGKILL);
      const pid_t burier = Spawn([&] {
        auto machine = Machine::Attach(config_, folder_.path());
        DieAt(at);
        (*machine)->Usage(0).value();
        RanThrough();
      });
      const int status = Join(burier);
      EXPECT_EQ(WrongAfterKill(*observer_), "")
          << "victim " << victim_step << ", burier " << Text(at);
      return status;
    });
    if (HasFailure()) return;
    EXPECT_GT(steps, 30);
  }
  ExpectKilledAt(kStepsOfReaping);
}

// A machine that nobody looked at for a second has that to catch up with, too. Killed in the middle
// of it again and again, they get through.
TEST_F(Kill, BuriersGetThroughALongTime) {
  ASSERT_EQ(Join(Spawn([&] { DieInTheMiddle(config_, folder_.path(), 40); })), -SIGKILL);
  usleep(1'500'000);
  std::minstd_rand random(1);
  int length = 0;
  for (int status = -SIGKILL; status == -SIGKILL; ++length) {
    ASSERT_LT(length, 1000) << "buriers get nowhere";
    status = Join(Spawn([&, step = static_cast<int>(random() % 110) + 1] {
      auto machine = Machine::Attach(config_, folder_.path());
      DieAt({Step::kCount, step});
      (*machine)->Usage(0).value();
      RanThrough();
    }));
  }
  std::printf("%d buriers\n", length);
  EXPECT_GT(length, 1);
  EXPECT_EQ(WrongAfterKill(*observer_), "");
}

// And whoever buries that one, and so on: each gets a little further, or begins again.
TEST_F(Kill, ChainsOfBuriersAtRandomSteps) {
  const char* const repeated = std::getenv("PRORATA_TEST_SEED");
  const unsigned seed = repeated != nullptr
                            ? static_cast<unsigned>(std::strtoul(repeated, nullptr, 10))
                            : std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::minstd_rand random(seed);
  int longest = 0;
  for (int round = 0; round < 20; ++round) {
    const int victim_step = static_cast<int>(random() % 60) + 1;
    const pid_t victim = Spawn([&] { DieInTheMiddle(config_, folder_.path(), victim_step); });
    ASSERT_EQ(Join(victim), -SIGKILL);
    int length = 0;
    for (int status = -SIGKILL; status == -SIGKILL; ++length) {
      ASSERT_LT(length, 1000) << "buriers get nowhere";
      const int step = static_cast<int>(random() % 80) + 1;
      const pid_t burier = Spawn([&] {
        auto machine = Machine::Attach(config_, folder_.path());
        DieAt({Step::kCount, step});
        (*machine)->Usage(0).value();
        RanThrough();
      });
      status = Join(burier);
      ASSERT_TRUE(status == -SIGKILL || status == kRanThrough) << status;
    }
    longest = std::max(longest, length);
    ASSERT_EQ(WrongAfterKill(*observer_), "") << "victim " << victim_step;
  }
  EXPECT_GT(longest, 3);
}

// All memory of every device can be had and touched, by a process that comes now.
void UseAll(const MachineConfig& config, const std::string& folder) {
  auto machine = Machine::Attach(config, folder);
  if (!machine) {
    ADD_FAILURE() << machine.error().message;
    return;
  }
  EXPECT_FALSE((*machine)->retired()) << "joined a machine that is history";
  const Handle process = (*machine)->RegisterProcess().value();
  for (int device = 0; device < (*machine)->device_count(); ++device) {
    const Handle context = (*machine)->CreateContext(process, device).value();
    const uint64_t free_bytes = (*machine)->MemInfo(device)->free_bytes;
    EXPECT_EQ(free_bytes, config.devices[device].memory_bytes - 16 * kMiB);
    const auto extents = (*machine)->AllocSlabs(context, free_bytes);
    ASSERT_TRUE(extents);
    struct stat info{};
    ASSERT_EQ(fstat((*machine)->memory_fd(device), &info), 0);
    EXPECT_EQ(static_cast<uint64_t>(info.st_size), config.devices[device].memory_bytes)
        << "the file of another machine's memory";
  }
  EXPECT_EQ((*machine)->CheckInvariants(), "");
}

// The machine is made, joined, and replaced by one with another configuration; the process that
// does it is killed. `after`: the configuration of who comes then.
void KillWhileAttaching(const MachineConfig* before, const MachineConfig& victims,
                        const MachineConfig& after) {
  ForEachStep([&](KillAt at) {
    SCOPED_TRACE(Text(at));
    const StateFolder folder;
    std::unique_ptr<Machine> observer;
    if (before != nullptr) {
      observer = AttachOrFail(*before, folder.path());
      // Its memory and its dead process are still there when the next one comes.
      Join(Spawn([&] {
        Victim victim = MakeVictim(*before, folder.path());
        kill(getpid(), SIGKILL);
      }));
    }
    const pid_t child = Spawn([&] {
      DieAt(at);
      auto machine = Machine::Attach(victims, folder.path());
      machine ? RanThrough() : _exit(1);
    });
    const int status = Join(child);
    UseAll(after, folder.path());
    if (observer && !observer->retired()) {
      // Then it must be the machine that the others use.
      int ready[2];
      EXPECT_EQ(pipe(ready), 0);
      const pid_t other = Spawn([&] {
        // Dies with all it has.
        [[maybe_unused]] const auto* left = MakeVictim(after, folder.path()).machine.release();
        _exit(write(ready[1], "x", 1) == 1 ? pause() : 1);
      });
      close(ready[1]);
      char byte;
      EXPECT_EQ(read(ready[0], &byte, 1), 1);
      close(ready[0]);
      EXPECT_EQ(observer->Usage(0)->processes.size(), 1u)
          << "an observer was left on a machine that nobody uses";
      kill(other, SIGKILL);
      Join(other);
    }
    return status;
  });
}

TEST(KillTest, AtEveryStepOfMakingAMachine) {
  KillWhileAttaching(nullptr, TwoDevices(), TwoDevices());
}

TEST(KillTest, AtEveryStepOfJoining) {
  const MachineConfig config = TwoDevices();
  KillWhileAttaching(&config, config, config);
}

TEST(KillTest, AtEveryStepOfReplacingAMachineAndTheOldOneComesBack) {
  const MachineConfig before = TwoDevices();
  MachineConfig other = before;
  other.devices[0].memory_bytes = 64 * kMiB;
  KillWhileAttaching(&before, other, before);
  ExpectKilledAt(kStepsOfReplacing);
}

TEST(KillTest, AtEveryStepOfReplacingAMachineAndTheNewOneIsMade) {
  const MachineConfig before = TwoDevices();
  MachineConfig other = before;
  other.devices[0].memory_bytes = 64 * kMiB;
  KillWhileAttaching(&before, other, other);
  ExpectKilledAt(kStepsOfReplacing);
}

// A forked child shares the description that the lock belongs to; if it kept it, the lock of a
// parent that died would be held for as long as the child lives.
TEST_F(Kill, AForkedChildDoesNotKeepTheLockOfItsDeadParent) {
  static std::atomic<pid_t>* const left =
      new (mmap(nullptr, sizeof(*left), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          std::atomic<pid_t>(0);
  const pid_t parent = Spawn([&] {
    Victim victim = MakeVictim(config_, folder_.path());
    g_step = [](Step) {  // now the lock is held
      g_step = nullptr;
      const pid_t child = fork();
      if (child == 0) {
        sleep(600);  // longer than this test may take
        _exit(0);
      }
      *left = child;
      kill(getpid(), SIGKILL);
    };
    victim.machine->CreateEvent(victim.context).value();
    _exit(1);
  });
  ASSERT_EQ(Join(parent), -SIGKILL);
  // The child lives: who waited for its lock would not come back before the test's time is over.
  EXPECT_EQ((*observer_->Usage(0)).used_bytes, 0u);
  EXPECT_EQ(kill(*left, SIGKILL), 0) << "the child was not there any more";
}

}  // namespace
}  // namespace prorata::simgpu
