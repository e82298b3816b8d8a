#include <gtest/gtest.h>

#include <atomic>

#include "sim/core/sharing_support.h"

// Those who died held something together with others: whoever buries them is killed, too, and what
// the living hold is theirs at every moment of it.

namespace prorata::simgpu {
namespace {

struct Remains {
  std::atomic<bool> named;
  std::atomic<bool> imported;
  std::atomic<bool> ready;
  ShareName memory;
  ShareName event;
};

// Has some of everything that can be shared, and waits for its death.
[[noreturn]] void BeVictim(const std::string& folder, const ShareName& memory,
                           const ShareName& event, Remains* board) {
  Party v(folder);
  Machine& m = *v.machine;
  const SharedMemory made = v.Share(8 * kMiB);
  const Handle recorded = m.CreateEvent(v.context).value();
  board->memory = v.Export(made);
  board->event = m.ExportEvent(recorded).value();
  board->named = true;
  while (!board->imported) usleep(50);
  v.Export(v.Share(4 * kMiB));  // nobody's but its own
  m.Import(memory, v.process, v.context).value();
  m.Import(memory, v.process, 0).value();
  // Held by a descriptor that dies with it, and by nothing else.
  const SharedMemory sent = v.Share(6 * kMiB);
  m.ExportDescriptor(sent.share).value();
  m.DropShare(sent.share);
  m.ExportDescriptor(made.share).value();
  m.ExportPool(v.process, 0).value();
  m.OpenEvent(event, v.context).value();
  const Work work[] = {Work::WaitFor(event.handle), Work::Kernel(1000, 1'000'000, 5),
                       Work::Record(recorded), Work::Record(event.handle)};
  m.Submit(v.stream, work).value();
  board->ready = true;
  for (;;) pause();
}

TEST(SharingReapTest, ABurierKilledAtEveryStepLeavesTheLivingWhatTheyHold) {
  const StateFolder folder;
  Party survivor(folder.path());
  Machine& machine = *survivor.machine;
  const ShareName memory = survivor.Export(survivor.Share(8 * kMiB));
  const Handle event = machine.CreateEvent(survivor.context).value();
  const ShareName event_name = machine.ExportEvent(event).value();
  const int64_t touched = TouchedBlocks(machine);
  const int steps = ForEachStep([&](KillAt at) {
    Board<Remains> board;
    const pid_t victim =
        Spawn([&] { BeVictim(folder.path(), memory, event_name, board.operator->()); });
    while (!board->named) usleep(50);
    const ShareName given = board->event;
    const auto share = machine.Import(board->memory, survivor.process, survivor.context).value();
    const Handle opened = machine.OpenEvent(given, survivor.context).value();
    board->imported = true;
    while (!board->ready) usleep(50);
    machine.Reap();  // so that nobody looks for the dead of himself in the next 5 ms
    kill(victim, SIGKILL);
    EXPECT_EQ(Join(victim), -SIGKILL);
    const pid_t burier = Spawn([&] {
      auto observer = Machine::Attach(SmallMachine(), folder.path());
      DieAt(at);
      (*observer)->Usage(0).value();
      RanThrough();
    });
    const int status = Join(burier);
    EXPECT_NE(machine.QueryEvent(given.handle), Code::kInvalidHandle)
        << "half buried, " << Text(at);
    EXPECT_EQ(machine.CheckInvariants(), "") << "killed at " << Text(at);
    EXPECT_EQ(UsedBy(machine, getpid()), kContextBytes + 16 * kMiB) << Text(at);
    EXPECT_EQ((*machine.Usage(0)).used_bytes, kContextBytes + 16 * kMiB) << Text(at);
    EXPECT_EQ(machine.WaitEvent(given.handle), Code::kOk);
    EXPECT_EQ(machine.CloseEvent(given.handle, opened), Code::kOk);
    EXPECT_EQ(machine.WaitEvent(event), Code::kOk);
    EXPECT_EQ(machine.DropShare(share.share), Code::kOk);
    EXPECT_EQ((*machine.Usage(0)).used_bytes, kContextBytes + 8 * kMiB) << Text(at);
    EXPECT_EQ(TouchedBlocks(machine), touched) << "bytes are lost or left, " << Text(at);
    EXPECT_EQ(machine.CheckInvariants(), "") << "after all, " << Text(at);
    return status;
  });
  std::printf("reaping of what was shared: %d steps\n", steps);
  EXPECT_GT(steps, 50);
}

TEST(SharingReapTest, AnEventThatOthersOpenedIsThereWhileItsMakersContextIsTakenApart) {
  struct Shared {
    std::atomic<bool> named;
    std::atomic<bool> opened;
    std::atomic<bool> halfway;
    std::atomic<bool> go_on;
    ShareName event;
  };
  const StateFolder folder;
  Party survivor(folder.path());
  Machine& machine = *survivor.machine;
  static Board<Shared> board;
  const pid_t maker = Spawn([&] {
    Party party(folder.path());
    party.Share(4 * kMiB);
    const Handle event = party.machine->CreateEvent(party.context).value();
    board->event = party.machine->ExportEvent(event).value();
    board->named = true;
    while (!board->opened) usleep(50);
    // Its memory is wiped without the machine's lock, after the context is marked as ending.
    g_step = [](Step at) {
      if (at != Step::kBeforeWiped) return;
      board->halfway = true;
      while (!board->go_on) usleep(50);
    };
    party.machine->DestroyContext(party.context);
    if (party.machine->QueryEvent(event) != Code::kInvalidHandle) _exit(3);
    _exit(0);
  });
  while (!board->named) usleep(50);
  const Handle event = board->event.handle;
  const Handle share = machine.OpenEvent(board->event, survivor.context).value();
  board->opened = true;
  while (!board->halfway) usleep(50);
  EXPECT_EQ(machine.QueryEvent(event), Code::kOk);
  EXPECT_TRUE(machine.Submit(survivor.stream, Work::Record(event)));
  EXPECT_EQ(machine.WaitEvent(event), Code::kOk);
  EXPECT_EQ(machine.CheckInvariants(), "");
  board->go_on = true;
  Join(maker);
  EXPECT_EQ(machine.QueryEvent(event), Code::kOk);
  EXPECT_EQ(machine.CloseEvent(event, share), Code::kOk);
  EXPECT_EQ(machine.QueryEvent(event), Code::kInvalidHandle);
  EXPECT_EQ(machine.CheckInvariants(), "");
}

}  // namespace
}  // namespace prorata::simgpu
