#include "simgpu/core/transaction.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "simgpu/core/test_support.h"

// A process killed at any step of any change leaves a machine that is whole, and from which
// everything it had can be freed.

namespace prorata::simgpu {
namespace {

constexpr int kRanThrough = 42;
int g_steps_left = 0;

void Die() {
  if (--g_steps_left == 0) {
    kill(getpid(), SIGKILL);
    pause();
  }
}

void DieAtStep(int step) {
  g_steps_left = step;
  g_transaction_step = Die;
}

// What a victim has before the operation under test.
struct Victim {
  std::unique_ptr<Machine> machine;
  Handle process = 0;
  Handle context = 0;
  Handle stream = 0;
  Handle legacy = 0;
  Handle event = 0;
  std::vector<Extent> extents;
};

Victim MakeVictim(const MachineConfig& config, const std::string& folder) {
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
  // The first is soon over and left behind: every burial finds an action of a kernel.
  const Work work[] = {Work::Kernel(1000, 1'000'000, 5), Work::Kernel(kNsPerS),
                       Work::Record(victim.event), Work::Host(7)};
  m.Submit(victim.stream, work).value();
  m.Submit(victim.legacy, Work::WaitFor(victim.event)).value();
  return victim;
}

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
    {"DestroyContext", [](Victim& v) { v.machine->DestroyContext(v.context); }},
    {"AllocSlabs", [](Victim& v) { v.machine->AllocSlabs(v.context, 50 * kMiB).value(); }},
    {"FreeSlabs", [](Victim& v) { v.machine->FreeSlabs(v.context, v.extents); }},
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

class UndoLogTest : public ::testing::TestWithParam<Case> {};

TEST_P(UndoLogTest, KillAtEveryStep) {
  const StateFolder folder;
  const MachineConfig config = SmallMachine();
  const auto observer = AttachOrFail(config, folder.path());
  ASSERT_TRUE(observer);
  int step = 1;
  for (;; ++step) {
    ASSERT_LT(step, 5000);
    const pid_t child = Spawn([&] {
      Victim victim = MakeVictim(config, folder.path());
      DieAtStep(step);
      GetParam().run(victim);
      g_transaction_step = nullptr;
      _exit(kRanThrough);
    });
    const int status = Join(child);
    ASSERT_TRUE(status == -SIGKILL || status == kRanThrough) << status << " at step " << step;
    ASSERT_EQ(observer->CheckInvariants(), "") << "killed at step " << step;
    const DeviceUsage usage = *observer->Usage(0);
    ASSERT_EQ(usage.used_bytes, 0u) << "lost memory at step " << step;
    ASSERT_TRUE(usage.processes.empty()) << "at step " << step;
    ASSERT_EQ(observer->CheckInvariants(), "") << "after the burial, step " << step;
    if (status == kRanThrough) break;
  }
  EXPECT_GT(step, 4) << "the operation changed nothing";
}

INSTANTIATE_TEST_SUITE_P(Operations, UndoLogTest, ::testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

// Whoever rolls back may be killed too, and the one after it.
TEST(TransactionTest, RollbackAndBurialKilledAtEveryStep) {
  const StateFolder folder;
  const MachineConfig config = SmallMachine();
  const auto observer = AttachOrFail(config, folder.path());
  for (int step = 1;; ++step) {
    ASSERT_LT(step, 5000);
    const pid_t first = Spawn([&] {
      Victim victim = MakeVictim(config, folder.path());
      DieAtStep(20);
      victim.machine->Submit(victim.legacy, Work::Record(victim.event)).value();
      victim.machine->AllocSlabs(victim.context, 50 * kMiB).value();
      _exit(1);
    });
    ASSERT_EQ(Join(first), -SIGKILL);
    const pid_t second = Spawn([&] {
      auto machine = Machine::Attach(config, folder.path());
      DieAtStep(step);
      (*machine)->Usage(0).value();
      _exit(kRanThrough);
    });
    const int status = Join(second);
    ASSERT_TRUE(status == -SIGKILL || status == kRanThrough) << status;
    ASSERT_EQ(observer->CheckInvariants(), "") << "killed at step " << step;
    ASSERT_EQ((*observer->Usage(0)).used_bytes, 0u) << "at step " << step;
    if (status == kRanThrough) {
      EXPECT_GT(step, 20);
      break;
    }
  }
}

// A forked child shares the description that the lock belongs to; if it kept it, the lock of a
// parent that died would be held for as long as the child lives.
TEST(TransactionTest, ForkedChildDoesNotKeepTheLockOfItsDeadParent) {
  const StateFolder folder;
  const MachineConfig config = SmallMachine();
  const auto observer = AttachOrFail(config, folder.path());
  const pid_t parent = Spawn([&] {
    Victim victim = MakeVictim(config, folder.path());
    g_transaction_step = [] {  // now the lock is held
      g_transaction_step = nullptr;
      if (fork() != 0) kill(getpid(), SIGKILL);
      sleep(5);
      _exit(0);
    };
    victim.machine->CreateEvent(victim.context).value();
    _exit(1);
  });
  ASSERT_EQ(Join(parent), -SIGKILL);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ((*observer->Usage(0)).used_bytes, 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(2));
}

}  // namespace
}  // namespace prorata::simgpu
