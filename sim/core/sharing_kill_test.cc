#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>

#include "sim/core/sharing_support.h"

// What several real processes share survives the death of any of them at any moment: nothing is
// torn, nobody pays for what he does not have, nothing is lost.

namespace prorata::simgpu {
namespace {

// What the survivor has to give.
struct Names {
  ShareName memory;
  ShareName event;
  int memory_fd = -1;
  int pool_fd = -1;
};

struct SharingCase {
  const char* name;
  void (*run)(Party&, const Names&);
};

// What the victim does with the survivor's 8 MiB and event while it is being killed.
const SharingCase kSharingCases[] = {
    {"ImportAndDrop",
     [](Party& v, const Names& names) {
       const auto share = v.machine->Import(names.memory, v.process, v.context).value();
       v.machine->Import(names.memory, v.process, 0).value();
       v.machine->DropShare(share.share);
     }},
    {"ContextGoes",
     [](Party& v, const Names& names) {
       v.machine->Import(names.memory, v.process, v.context).value();
       v.machine->DestroyContext(v.context);
     }},
    {"ShareAndDrop",
     [](Party& v, const Names&) {
       const SharedMemory made = v.Share(6 * kMiB);
       v.Export(made);
       v.machine->WithdrawExport(v.Export(made));
       v.machine->DropShare(made.share);
     }},
    // The second extent is not the victim's: all is undone.
    {"RefusedShare",
     [](Party& v, const Names&) {
       const uint64_t slab = v.machine->device(0).slab_bytes;
       const auto extents = v.machine->AllocSlabs(v.context, 6 * kMiB).value();
       const Extent wrong[] = {extents[0], {100 * slab, slab}};
       if (v.machine->ShareSlabs(v.context, wrong).error() != Code::kInvalidValue) _exit(5);
     }},
    {"PassShare",
     [](Party& v, const Names& names) {
       const Handle second = v.machine->CreateContext(v.process, 0).value();
       const Handle made = v.Share(6 * kMiB).share;
       const Handle got = v.machine->Import(names.memory, v.process, v.context)->share;
       for (const Handle share : {made, got}) {
         if (v.machine->PassShare(share, second) != Code::kOk) _exit(5);
       }
       v.machine->DestroyContext(v.context);
       if (v.machine->DropShare(got) != Code::kOk) _exit(6);
       v.machine->DestroyContext(second);
       if (v.machine->DropShare(made) != Code::kInvalidHandle) _exit(7);
     }},
    {"AnothersDescriptors",
     [](Party& v, const Names& names) {
       const auto first = v.machine->ImportDescriptor(names.memory_fd, v.process).value();
       const int fd = v.machine->ExportDescriptor(first.share).value();
       v.machine->DropShare(first.share);
       v.machine->ImportDescriptor(fd, v.process).value();
       v.machine->ImportPool(names.pool_fd, v.process).value();
       v.machine->UnregisterProcess(v.process);
     }},
    {"Descriptors",
     [](Party& v, const Names&) {
       const SharedMemory made = v.Share(6 * kMiB);
       const int fd = v.machine->ExportDescriptor(made.share).value();
       v.machine->DropShare(made.share);
       const auto again = v.machine->ImportDescriptor(fd, v.process).value();
       close(fd);
       v.machine->Reap();
       v.machine->DropShare(again.share);
       close(v.machine->ExportDescriptor(v.Share(4 * kMiB).share).value());
       v.machine->DestroyContext(v.context);  // only the dead descriptor holds it now
       v.machine->Reap();
       close(v.machine->ExportPool(v.process, 0)->fd);
     }},
    {"Events",
     [](Party& v, const Names& names) {
       const Handle share = v.machine->OpenEvent(names.event, v.context).value();
       v.machine->Submit(v.stream, Work::WaitFor(names.event.handle)).value();
       v.machine->Submit(v.stream, Work::Record(names.event.handle)).value();
       v.machine->CloseEvent(names.event.handle, share);
     }},
};

class SharingKillTest : public ::testing::TestWithParam<SharingCase> {};

TEST_P(SharingKillTest, AnImporterKilledAtEveryStepLeavesTheExporterWhatItHas) {
  const StateFolder folder;
  Party survivor(folder.path());
  const SharedMemory held = survivor.Share(8 * kMiB);
  const Handle event = survivor.machine->CreateEvent(survivor.context).value();
  const Names names = {survivor.Export(held), survivor.machine->ExportEvent(event).value(),
                       survivor.machine->ExportDescriptor(held.share).value(),
                       survivor.machine->ExportPool(survivor.process, 0)->fd};
  const int64_t touched = TouchedBlocks(*survivor.machine);
  const int steps = ForEachStep([&](KillAt at) {
    const pid_t child = Spawn([&] {
      Party victim(folder.path());
      DieAt(at);
      GetParam().run(victim, names);
      RanThrough();
    });
    const int status = Join(child);
    EXPECT_EQ(survivor.machine->CheckInvariants(), "") << "killed at " << Text(at);
    EXPECT_EQ(UsedBy(*survivor.machine, getpid()), kContextBytes + 8 * kMiB) << Text(at);
    EXPECT_EQ((*survivor.machine->Usage(0)).processes.size(), 1u) << Text(at);
    EXPECT_EQ(survivor.machine->QueryEvent(event), Code::kOk) << Text(at);
    EXPECT_EQ(TouchedBlocks(*survivor.machine), touched) << "bytes are lost or left, " << Text(at);
    EXPECT_EQ(survivor.machine->CheckInvariants(), "") << "after the reaping, " << Text(at);
    return status;
  });
  std::printf("%s: %d steps\n", GetParam().name, steps);
  EXPECT_GT(steps, 10);
  close(names.memory_fd);
  close(names.pool_fd);
  EXPECT_EQ(survivor.machine->DestroyContext(survivor.context), Code::kOk);
  EXPECT_EQ(WrongAfterKill(*survivor.machine), "");
}

INSTANTIATE_TEST_SUITE_P(Operations, SharingKillTest, ::testing::ValuesIn(kSharingCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(SharingKillTest, AnExporterKilledAtEveryStepLeavesTheImporterWhatItHas) {
  struct Shared {
    std::atomic<bool> named;
    std::atomic<bool> imported;
    Names names;
  };
  const StateFolder folder;
  Party survivor(folder.path());
  const int steps = ForEachStep([&](KillAt at) {
    Board<Shared> board;
    const pid_t child = Spawn([&] {
      Party victim(folder.path());
      const SharedMemory made = victim.Share(8 * kMiB);
      const Handle event = victim.machine->CreateEvent(victim.context).value();
      board->names = {victim.Export(made), victim.machine->ExportEvent(event).value()};
      board->named = true;
      while (!board->imported) usleep(50);
      DieAt(at);
      victim.machine->Submit(victim.stream, Work::Record(event)).value();
      victim.machine->DropShare(made.share);
      victim.machine->DestroyEvent(event);
      victim.machine->UnregisterProcess(victim.process);
      RanThrough();
    });
    while (!board->named) usleep(50);
    const Names names = board->names;
    Machine& machine = *survivor.machine;
    const auto share = machine.Import(names.memory, survivor.process, survivor.context).value();
    const Handle opened = machine.OpenEvent(names.event, survivor.context).value();
    board->imported = true;
    const int status = Join(child);
    EXPECT_EQ(machine.CheckInvariants(), "") << "killed at " << Text(at);
    EXPECT_EQ(UsedBy(machine, getpid()), kContextBytes + 8 * kMiB) << Text(at);
    EXPECT_EQ(machine.WaitEvent(names.event.handle), Code::kOk);
    EXPECT_EQ(machine.CloseEvent(names.event.handle, opened), Code::kOk);
    EXPECT_EQ(machine.QueryEvent(names.event.handle), Code::kInvalidHandle);
    EXPECT_EQ(machine.DropShare(share.share), Code::kOk);
    EXPECT_EQ((*machine.Usage(0)).used_bytes, kContextBytes) << Text(at);
    EXPECT_EQ(machine.CheckInvariants(), "") << "after all, " << Text(at);
    return status;
  });
  std::printf("exporter: %d steps\n", steps);
  EXPECT_GT(steps, 20);
}

// --- Chaos --------------------------------------------------------------------------------------

constexpr int kSlots = 8;
struct Exchange {
  std::array<std::atomic<uint64_t>, kSlots> memory_handle;
  std::array<std::atomic<uint64_t>, kSlots> memory_cookie;
  std::array<std::atomic<uint64_t>, kSlots> event_handle;
  std::array<std::atomic<uint64_t>, kSlots> event_cookie;
};

// Shares with everybody at random until it is killed. Names are read while others change them: a
// torn one must be refused, and is.
[[noreturn]] void Trade(const std::string& folder, Exchange& exchange, unsigned seed) {
  std::minstd_rand random(seed);
  Party party(folder);
  Machine& machine = *party.machine;
  std::vector<Handle> shares;
  std::vector<std::pair<Handle, Handle>> events;
  for (;;) {
    const size_t slot = random() % kSlots;
    switch (random() % 8) {
      case 0: {
        const auto extents = machine.AllocSlabs(party.context, (random() % 8 + 1) * kMiB);
        if (!extents) break;
        const auto made = machine.ShareSlabs(party.context, *extents);
        if (!made) _exit(2);
        shares.push_back(made->share);
        const ShareName name = machine.ExportAddress(made->share, 0, 1).value();
        exchange.memory_handle[slot] = name.handle;
        exchange.memory_cookie[slot] = name.cookie;
        break;
      }
      case 1:
      case 2: {
        const ShareName name = {exchange.memory_handle[slot], exchange.memory_cookie[slot]};
        const auto got =
            machine.Import(name, party.process, random() % 2 ? party.context : Handle{0});
        if (got) shares.push_back(got->share);
        break;
      }
      case 3:
        if (shares.empty()) break;
        if (machine.DropShare(shares.back()) != Code::kOk) _exit(3);
        shares.pop_back();
        break;
      case 4: {
        const Handle event = machine.CreateEvent(party.context).value();
        const ShareName name = machine.ExportEvent(event).value();
        events.emplace_back(event, 0);
        exchange.event_handle[slot] = name.handle;
        exchange.event_cookie[slot] = name.cookie;
        break;
      }
      case 5: {
        const ShareName name = {exchange.event_handle[slot], exchange.event_cookie[slot]};
        const auto share = machine.OpenEvent(name, party.context);
        if (share) events.emplace_back(name.handle, *share);
        break;
      }
      case 6: {
        if (events.empty()) break;
        const Handle event = events[random() % events.size()].first;
        const Work work[] = {Work::WaitFor(event), Work::Kernel(1000, 300'000, random() % 2),
                             Work::Record(event)};
        [[maybe_unused]] const auto full = machine.Submit(party.stream, work);  // maybe
        break;
      }
      default:
        while (const auto action = machine.NextAction(party.process, 0)) {
          if (machine.CompleteAction(*action) != Code::kOk) _exit(5);
        }
        if (events.size() > 4) {
          const auto [event, share] = events.front();
          if (share != 0 ? machine.CloseEvent(event, share) != Code::kOk
                         : machine.DestroyEvent(event) != Code::kOk) {
            _exit(6);
          }
          events.erase(events.begin());
        }
    }
  }
}

TEST(SharingChaosTest, KillsAmongProcessesThatShareLoseNothing) {
  const StateFolder folder;
  const auto observer = AttachOrFail(SmallMachine(), folder.path());
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::minstd_rand random(seed);
  Board<Exchange> exchange;
  std::vector<pid_t> members;
  const auto start = [&] {
    const auto member_seed = static_cast<unsigned>(random());
    return Spawn([&] { Trade(folder.path(), *exchange.operator->(), member_seed); });
  };
  for (int i = 0; i < 5; ++i) members.push_back(start());
  constexpr int kMinKills = 20;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  int kills = 0;
  while (kills < kMinKills || std::chrono::steady_clock::now() < end) {
    usleep(random() % 20000);
    pid_t& member = members[random() % members.size()];
    kill(member, SIGKILL);
    ASSERT_EQ(Join(member), -SIGKILL) << "a member ended by itself";
    ++kills;
    ASSERT_EQ(observer->CheckInvariants(), "") << "after kill " << kills;
    UsedBy(*observer, 0);
    member = start();
  }
  for (const pid_t member : members) kill(member, SIGKILL);
  for (const pid_t member : members) EXPECT_EQ(Join(member), -SIGKILL);
  EXPECT_EQ((*observer->Usage(0)).used_bytes, 0u);
  EXPECT_EQ(observer->CheckInvariants(), "");
}

}  // namespace
}  // namespace prorata::simgpu
