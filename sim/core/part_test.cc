// Streams that are confined to a part of a device's SMs.

#include "base/units.h"
#include "sim/core/machine.h"
#include "sim/core/test_support.h"

namespace prorata::simgpu {
namespace {

// A device of 100 SMs, where an SM is 10,000 ppm.
class PartTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MachineConfig config = DefaultMachineConfig();
    config.devices[0].sm_count = 100;
    config.devices[0].launch_latency_ns = 0;
    machine_ = Machine::MakeLocal(config, &clock_);
    process_ = *machine_->RegisterProcess(1);
    context_ = *machine_->CreateContext(process_, 0);
  }
  void TearDown() override { EXPECT_EQ(machine_->CheckInvariants(), ""); }

  Handle Stream(const SmSet& sms, StreamKind kind = StreamKind::kNonBlocking, Handle legacy = 0) {
    const auto stream = machine_->CreateStream(context_, kind, 0, {.sms = sms, .legacy = legacy});
    EXPECT_TRUE(stream) << static_cast<int>(stream.error());
    return stream.value_or(0);
  }
  Code Refused(StreamKind kind, const StreamPart& part) {
    const auto stream = machine_->CreateStream(context_, kind, 0, part);
    return stream ? Code::kOk : stream.error();
  }
  // A kernel of one millisecond on so many SMs.
  void Run(Handle stream, uint32_t sms, int64_t ns = kMs) {
    EXPECT_TRUE(machine_->Submit(stream, Work::Kernel(ns, sms * 10'000)));
    EXPECT_EQ(machine_->CheckInvariants(), "");
  }
  int64_t DoneMs(Handle stream) {
    EXPECT_EQ(machine_->WaitStream(stream), Code::kOk);
    return clock_.NowNs() / kMs;
  }

  VirtualClock clock_;
  std::unique_ptr<Machine> machine_;
  Handle process_ = 0;
  Handle context_ = 0;
};

TEST_F(PartTest, PartsRunBesideEachOtherAndEachInLine) {
  const Handle a = Stream(SmSet::Range(0, 8)), beside_a = Stream(SmSet::Range(0, 8));
  const Handle b = Stream(SmSet::Range(8, 8));
  Run(a, 8);
  Run(beside_a, 8);
  Run(b, 8);
  EXPECT_EQ(DoneMs(a), 1);
  EXPECT_EQ(DoneMs(b), 1) << "held up by nobody's line but its own";
  EXPECT_EQ(DoneMs(beside_a), 2);
}

TEST_F(PartTest, SmallKernelsShareAPart) {
  const Handle a = Stream(SmSet::Range(0, 8)), b = Stream(SmSet::Range(0, 8)),
               c = Stream(SmSet::Range(0, 8));
  for (const Handle stream : {a, b, c}) Run(stream, 4);
  EXPECT_EQ(DoneMs(b), 1);
  EXPECT_EQ(DoneMs(c), 2);
}

TEST_F(PartTest, AKernelFillsNoMoreThanItsPart) {
  const Handle a = Stream(SmSet::Range(0, 30)), all = Stream({});
  Run(a, 100);
  Run(all, 70);
  EXPECT_EQ(DoneMs(all), 1);
  EXPECT_EQ(DoneMs(a), 1);
}

TEST_F(PartTest, UnconfinedStreamsUseAllSms) {
  const Handle a = Stream(SmSet::Range(0, 30)), all = Stream({}),
               later = Stream(SmSet::Range(0, 30));
  Run(a, 30);
  Run(all, 71);
  Run(later, 1);
  EXPECT_EQ(DoneMs(a), 1);
  EXPECT_EQ(DoneMs(later), 2) << "in line behind it, beside it then";
  EXPECT_EQ(DoneMs(all), 2);
}

TEST_F(PartTest, APartInsideAnotherCountsThere) {
  const Handle outer = Stream(SmSet::Range(0, 16)), inner = Stream(SmSet::Range(8, 8));
  Run(outer, 12);
  Run(inner, 8);
  EXPECT_EQ(DoneMs(outer), 1);
  EXPECT_EQ(DoneMs(inner), 2);
  Run(outer, 8);
  Run(inner, 8);
  EXPECT_EQ(DoneMs(outer), 3);
  EXPECT_EQ(DoneMs(inner), 3);
}

TEST_F(PartTest, FillsTakeTheirPartOnly) {
  const Handle a = Stream(SmSet::Range(0, 8)), b = Stream(SmSet::Range(8, 92));
  ASSERT_TRUE(machine_->Submit(a, Work::Copy(WorkKind::kCopyOnDevice, uint64_t{1} << 31)));
  Run(b, 92);
  EXPECT_EQ(DoneMs(b), 1);
  EXPECT_EQ(machine_->QueryStream(a), Code::kNotReady);
}

TEST_F(PartTest, APartHasADefaultStreamOfItsOwn) {
  const SmSet sms = SmSet::Range(0, 8);
  const Handle legacy = *machine_->CreateStream(context_, StreamKind::kLegacy);
  const Handle blocking = *machine_->CreateStream(context_, StreamKind::kBlocking);
  const Handle part_legacy = Stream(sms, StreamKind::kLegacy);
  const Handle part_blocking = Stream(sms, StreamKind::kBlocking, part_legacy);
  Run(legacy, 1, 5 * kMs);
  Run(part_legacy, 1, 2 * kMs);
  Run(part_blocking, 1);
  Run(blocking, 1);
  EXPECT_EQ(DoneMs(part_blocking), 3);
  EXPECT_EQ(DoneMs(blocking), 6);
  Run(part_blocking, 1, 2 * kMs);
  Run(legacy, 1);
  Run(part_legacy, 1);
  EXPECT_EQ(DoneMs(legacy), 7);
  EXPECT_EQ(DoneMs(part_legacy), 9);
}

// Its place in the table may be another stream's by then.
TEST_F(PartTest, ADefaultStreamThatIsGoneHoldsNobodyUp) {
  const SmSet sms = SmSet::Range(0, 8);
  const Handle part_legacy = Stream(sms, StreamKind::kLegacy);
  const Handle part_blocking = Stream(sms, StreamKind::kBlocking, part_legacy);
  ASSERT_EQ(machine_->DestroyStream(part_legacy), Code::kOk);
  machine_->NextEventNs();
  const Handle reused = Stream({});
  Run(reused, 1, 5 * kMs);
  Run(part_blocking, 1);
  EXPECT_EQ(DoneMs(part_blocking), 1);
}

TEST_F(PartTest, BadPartsAreRefused) {
  const SmSet sms = SmSet::Range(0, 8);
  EXPECT_EQ(Refused(StreamKind::kNonBlocking, {.sms = SmSet::Range(96, 8)}), Code::kInvalidValue);
  const Handle plain = Stream({}), legacy = Stream(sms, StreamKind::kLegacy);
  EXPECT_EQ(Refused(StreamKind::kBlocking, {.sms = sms, .legacy = plain}), Code::kInvalidValue);
  EXPECT_EQ(Refused(StreamKind::kBlocking, {.sms = {}, .legacy = legacy}), Code::kInvalidValue);
  EXPECT_EQ(Refused(StreamKind::kLegacy, {.sms = sms, .legacy = legacy}), Code::kInvalidValue);
  const Handle other = *machine_->CreateContext(process_, 0);
  EXPECT_FALSE(
      machine_->CreateStream(other, StreamKind::kBlocking, 0, {.sms = sms, .legacy = legacy}));
}

}  // namespace
}  // namespace prorata::simgpu
