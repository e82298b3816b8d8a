#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "sim/core/machine.h"
#include "sim/core/test_support.h"

// Memory and events of several processes, on a virtual clock: who holds, who pays, who waits.

namespace prorata::simgpu {
namespace {

constexpr uint64_t kContextBytes = 16 * kMiB;

struct Member {
  Handle process = 0;
  Handle context = 0;
  Handle stream = 0;
};

class SharingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MachineConfig config = SmallMachine();
    config.devices[0].launch_latency_ns = 0;
    config.devices[0].switch_cost_ns = 0;
    machine_ = Machine::MakeLocal(config, &clock_);
    for (int pid = 1; pid <= 3; ++pid) members_[pid] = Join(pid);
  }
  void TearDown() override { EXPECT_EQ(machine_->CheckInvariants(), ""); }

  Member Join(int pid) {
    Member member;
    member.process = *machine_->RegisterProcess(pid);
    member.context = *machine_->CreateContext(member.process, 0);
    member.stream = *machine_->CreateStream(member.context, StreamKind::kNonBlocking);
    return member;
  }
  SharedMemory Share(int pid, uint64_t bytes) {
    const auto extents = machine_->AllocSlabs(members_[pid].context, bytes).value();
    return machine_->ShareSlabs(members_[pid].context, extents).value();
  }
  ShareName Export(const SharedMemory& memory) {
    return machine_->ExportAddress(memory.share, 0, memory.length_bytes).value();
  }
  Answer<SharedMemory> Import(int pid, const ShareName& name) {
    return machine_->Import(name, members_[pid].process, members_[pid].context);
  }
  // {pid: MiB without its context}
  std::map<int, uint64_t> Accounts() {
    EXPECT_EQ(machine_->CheckInvariants(), "");
    std::map<int, uint64_t> accounts;
    const DeviceUsage usage = *machine_->Usage(0);
    uint64_t sum = 0;
    for (const ProcessUsage& process : usage.processes) {
      sum += process.used_bytes;
      const uint64_t context = process.used_bytes >= kContextBytes ? kContextBytes : 0;
      accounts[process.pid] = (process.used_bytes - context) / kMiB;
    }
    EXPECT_EQ(sum, usage.used_bytes);
    return accounts;
  }
  using Map = std::map<int, uint64_t>;

  VirtualClock clock_;
  std::unique_ptr<Machine> machine_;
  Member members_[4];
};

TEST_F(SharingTest, TheMakerPaysThenWhoeverHasHeldItLongest) {
  const SharedMemory made = Share(1, 8 * kMiB);
  const ShareName name = Export(made);
  EXPECT_EQ(Accounts(), (Map{{1, 8}, {2, 0}, {3, 0}}));
  const SharedMemory second = Import(2, name).value();
  const SharedMemory third = Import(3, name).value();
  EXPECT_EQ(second.block, made.block);
  EXPECT_EQ(second.extents.size(), made.extents.size());
  EXPECT_EQ(Accounts(), (Map{{1, 8}, {2, 0}, {3, 0}}));
  EXPECT_EQ(machine_->DropShare(made.share), Code::kOk);
  EXPECT_EQ(Accounts(), (Map{{1, 0}, {2, 8}, {3, 0}}));
  EXPECT_EQ(machine_->UnregisterProcess(members_[2].process), Code::kOk);
  EXPECT_EQ(Accounts(), (Map{{1, 0}, {3, 8}}));
  EXPECT_EQ(machine_->DropShare(third.share), Code::kOk);
  EXPECT_EQ(Accounts(), (Map{{1, 0}, {3, 0}}));
  EXPECT_EQ(machine_->DropShare(third.share), Code::kInvalidHandle);
}

TEST_F(SharingTest, NamesEndWithTheMakersShare) {
  const SharedMemory made = Share(1, 4 * kMiB);
  const ShareName name = Export(made);
  EXPECT_EQ(Import(1, name).error(), Code::kOwn);
  EXPECT_EQ(Import(2, {name.handle, name.cookie + 1}).error(), Code::kInvalidValue);
  const SharedMemory held = Import(2, name).value();
  EXPECT_EQ(machine_->DropShare(made.share), Code::kOk);
  EXPECT_EQ(Import(3, name).error(), Code::kInvalidValue) << "held, but no longer named";
  EXPECT_EQ(machine_->DropShare(held.share), Code::kOk);
  const SharedMemory again = Share(1, 4 * kMiB);
  const ShareName withdrawn = Export(again);
  EXPECT_EQ(machine_->WithdrawExport(withdrawn), Code::kOk);
  EXPECT_EQ(Import(2, withdrawn).error(), Code::kInvalidValue);
}

// A name of somebody else's would outlive the maker's share, and then the block.
TEST_F(SharingTest, OnlyTheMakerNamesItsMemory) {
  const SharedMemory made = Share(1, 8 * kMiB);
  const SharedMemory second = Import(2, Export(made)).value();
  EXPECT_EQ(machine_->DropShare(made.share), Code::kOk);
  const auto name = machine_->ExportAddress(second.share, 0, second.length_bytes);
  EXPECT_EQ(machine_->DropShare(second.share), Code::kOk);
  ASSERT_FALSE(name) << "and it now names freed memory, or that of others";
  EXPECT_EQ(name.error(), Code::kInvalidValue);
}

TEST_F(SharingTest, AShareOfAnEventIsNoneOfMemory) {
  const ShareName name = Export(Share(2, 2 * kMiB));
  const Handle memory = Import(1, name)->share;
  const Handle event = machine_->CreateEvent(members_[2].context).value();
  const ShareName event_name = machine_->ExportEvent(event).value();
  const Handle opened = machine_->OpenEvent(event_name, members_[1].context).value();
  EXPECT_EQ(machine_->DropShare(opened), Code::kInvalidHandle);
  EXPECT_EQ(machine_->PassShare(opened, members_[1].context), Code::kInvalidHandle);
  EXPECT_EQ(machine_->ExportAddress(opened, 0, 1).error(), Code::kInvalidHandle);
  EXPECT_NE(machine_->CloseEvent(0, memory), Code::kOk);
  EXPECT_EQ(machine_->CloseEvent(event, opened), Code::kOk);
  EXPECT_EQ(machine_->DropShare(memory), Code::kOk);
}

TEST_F(SharingTest, SharedSlabsAreNotFreedAsSlabs) {
  const auto extents = machine_->AllocSlabs(members_[1].context, 4 * kMiB).value();
  EXPECT_EQ(machine_->ShareSlabs(members_[2].context, extents).error(), Code::kInvalidValue);
  const SharedMemory made = machine_->ShareSlabs(members_[1].context, extents).value();
  EXPECT_EQ(machine_->FreeSlabs(members_[1].context, extents), Code::kInvalidValue);
  EXPECT_EQ(machine_->ShareSlabs(members_[1].context, extents).error(), Code::kInvalidValue);
  EXPECT_EQ(machine_->DropShare(made.share), Code::kOk);
  EXPECT_EQ(Accounts(), (Map{{1, 0}, {2, 0}, {3, 0}}));
}

TEST_F(SharingTest, AContextsSharesGoWithIt) {
  const ShareName name = Export(Share(1, 8 * kMiB));
  const Handle other = *machine_->CreateContext(members_[2].process, 0);
  ASSERT_TRUE(machine_->Import(name, members_[2].process, other));
  EXPECT_EQ(machine_->DestroyContext(members_[1].context), Code::kOk);
  EXPECT_EQ((*machine_->Usage(0)).used_bytes, 3 * kContextBytes + 8 * kMiB);
  EXPECT_EQ(machine_->DestroyContext(other), Code::kOk);
  EXPECT_EQ((*machine_->Usage(0)).used_bytes, 2 * kContextBytes);
}

TEST_F(SharingTest, APassedShareGoesWithItsNewContext) {
  const SharedMemory made = Share(1, 8 * kMiB);
  const Handle other = *machine_->CreateContext(members_[1].process, 0);
  EXPECT_EQ(machine_->PassShare(made.share, members_[2].context), Code::kInvalidValue);
  EXPECT_EQ(machine_->PassShare(made.share, other), Code::kOk);
  EXPECT_EQ(machine_->DestroyContext(members_[1].context), Code::kOk);
  EXPECT_EQ((*machine_->Usage(0)).used_bytes, 3 * kContextBytes + 8 * kMiB);
  EXPECT_EQ(machine_->DestroyContext(other), Code::kOk);
  EXPECT_EQ((*machine_->Usage(0)).used_bytes, 2 * kContextBytes);
}

TEST_F(SharingTest, AWaitForAnotherProcessesEventWaitsForItsFunctionsToo) {
  const Handle event = *machine_->CreateEvent(members_[1].context);
  const ShareName name = machine_->ExportEvent(event).value();
  ASSERT_TRUE(machine_->OpenEvent(name, members_[2].context));
  const Work first[] = {Work::Kernel(kNsPerMs, 100'000, 1), Work::Record(event)};
  machine_->Submit(members_[1].stream, first).value();
  const Work second[] = {Work::WaitFor(event), Work::Host(2)};
  machine_->Submit(members_[2].stream, second).value();
  const int64_t end_ns = machine_->NowNs() + 10 * kNsPerMs;
  EXPECT_EQ(machine_->NextAction(members_[2].process, end_ns).error(), Code::kTimedOut)
      << "its kernel is past on the device, but what it writes is not there";
  EXPECT_EQ(machine_->CheckInvariants(), "");
  const Action kernel = machine_->NextAction(members_[1].process).value();
  EXPECT_EQ(machine_->CompleteAction(kernel), Code::kOk);
  EXPECT_EQ(machine_->CheckInvariants(), "");
  EXPECT_EQ(machine_->NextAction(members_[2].process).value().token, 2u);
}

TEST_F(SharingTest, AWaitEndsWithTheRecordersDeath) {
  const Handle event = *machine_->CreateEvent(members_[1].context);
  const ShareName name = machine_->ExportEvent(event).value();
  ASSERT_TRUE(machine_->OpenEvent(name, members_[2].context));
  const Work first[] = {Work::Kernel(kNsPerMs, 100'000, 1), Work::Record(event)};
  machine_->Submit(members_[1].stream, first).value();
  machine_->Submit(members_[2].stream, Work::WaitFor(event)).value();
  const int64_t end_ns = machine_->NowNs() + 10 * kNsPerMs;
  EXPECT_EQ(machine_->WaitStream(members_[2].stream, 1, end_ns), Code::kTimedOut);
  EXPECT_EQ(machine_->UnregisterProcess(members_[1].process), Code::kOk);
  EXPECT_EQ(machine_->CheckInvariants(), "");
  EXPECT_EQ(machine_->WaitStream(members_[2].stream), Code::kOk);
}

TEST_F(SharingTest, AnOpenedEventIsRecordedAndOutlivesItsMaker) {
  const Handle event = *machine_->CreateEvent(members_[1].context);
  EXPECT_FALSE(machine_->Submit(members_[2].stream, Work::Record(event))) << "not opened";
  const ShareName name = machine_->ExportEvent(event).value();
  EXPECT_EQ(machine_->OpenEvent(name, members_[1].context).error(), Code::kOwn);
  const Handle share = machine_->OpenEvent(name, members_[2].context).value();
  const Handle other_share = machine_->OpenEvent(name, members_[3].context).value();
  const Work work[] = {Work::Kernel(kNsPerMs), Work::Record(event)};
  machine_->Submit(members_[2].stream, work).value();
  EXPECT_EQ(machine_->QueryEvent(event), Code::kNotReady);
  EXPECT_EQ(machine_->DestroyEvent(event), Code::kOk);
  EXPECT_EQ(machine_->CheckInvariants(), "");
  EXPECT_EQ(machine_->WaitEvent(event), Code::kOk);
  EXPECT_EQ(machine_->CloseEvent(event, share), Code::kOk);
  EXPECT_EQ(machine_->QueryEvent(event), Code::kOk) << "the third still has it";
  EXPECT_EQ(machine_->UnregisterProcess(members_[3].process), Code::kOk);
  EXPECT_EQ(machine_->QueryEvent(event), Code::kInvalidHandle);
  EXPECT_EQ(machine_->CloseEvent(event, other_share), Code::kInvalidHandle);
}

}  // namespace
}  // namespace prorata::simgpu
