// Words of memory that streams wait for and write: the stream memory operations.

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

#define MEMORY_OPERATIONS(function) DRIVER_API("Stream Memory Operations, " function)

class StreamValueTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    Kernel("step");
    stream_ = NewStream();
    word_ = HostWord(0);
    address_ = AddressOf(word_);
  }
  // With `now` in the word, a stream that waits for `value` under `flags` goes on, or is held up.
  void ExpectGoesOn32(uint32_t now, uint32_t value, unsigned flags) {
    ExpectGoesOn(now,
                 [&] { return CUDA(cuStreamWaitValue32_v2)(stream_, address_, value, flags); });
  }
  void ExpectHeldUp32(uint32_t now, uint32_t value, unsigned flags) {
    ExpectHeldUp(now,
                 [&] { return CUDA(cuStreamWaitValue32_v2)(stream_, address_, value, flags); });
  }
  void ExpectGoesOn64(uint64_t now, uint64_t value, unsigned flags) {
    ExpectGoesOn(now,
                 [&] { return CUDA(cuStreamWaitValue64_v2)(stream_, address_, value, flags); });
  }
  void ExpectHeldUp64(uint64_t now, uint64_t value, unsigned flags) {
    ExpectHeldUp(now,
                 [&] { return CUDA(cuStreamWaitValue64_v2)(stream_, address_, value, flags); });
  }
  CUstreamBatchMemOpParams Write(CUdeviceptr address, uint32_t value) {
    CUstreamBatchMemOpParams op;
    std::memset(&op, 0, sizeof(op));
    op.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = address;
    op.writeValue.value = value;
    return op;
  }
  CUstreamBatchMemOpParams Wait(CUdeviceptr address, uint32_t value) {
    CUstreamBatchMemOpParams op;
    std::memset(&op, 0, sizeof(op));
    op.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    op.waitValue.address = address;
    op.waitValue.value = value;
    op.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    return op;
  }

  // Atomically: a stream that is held up looks at the word meanwhile.
  void Set(uint64_t value) { __atomic_store_n(word_, value, __ATOMIC_RELEASE); }

  CUstream stream_ = nullptr;
  volatile uint64_t* word_ = nullptr;
  CUdeviceptr address_ = 0;

 private:
  template <typename Submit>
  void ExpectGoesOn(uint64_t now, Submit submit) {
    Set(now);
    volatile uint64_t* after = HostWord(0);
    ASSERT_EQ(submit(), CUDA_SUCCESS);
    ASSERT_EQ(Step(stream_, AddressOf(after), 0, 1, 1000), CUDA_SUCCESS);
    // However late: what the wait lets through, and when, is the machine's affair.
    EXPECT_TRUE(Finishes(stream_)) << "still waits: the word is " << now;
    EXPECT_EQ(*after, 1u);
    LeaveStream();
  }
  template <typename Submit>
  void ExpectHeldUp(uint64_t now, Submit submit) {
    Set(now);
    // Allocated before the stream is held up: that may wait for the device.
    volatile uint64_t* after = HostWord(0);
    volatile uint64_t* passed = HostWord(0);
    volatile uint64_t* open = HostWord(1);
    const CUstream other = NewStream();
    ASSERT_EQ(submit(), CUDA_SUCCESS);
    ASSERT_EQ(Step(stream_, AddressOf(after), 0, 1, 1000), CUDA_SUCCESS);
    // A wait submitted later, which is satisfied, has let its stream go on, and some time passes:
    // a driver that does not hold the first one up has had its chance.
    CUDA_OK(cuStreamWaitValue32_v2, other, AddressOf(open), 1, CU_STREAM_WAIT_VALUE_EQ);
    ASSERT_EQ(Step(other, AddressOf(passed), 0, 1, 5 * kMs), CUDA_SUCCESS);
    ASSERT_TRUE(Finishes(other));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, stream_);
    EXPECT_EQ(*after, 0u) << "went on: the word is " << now;
    LeaveStream();
  }
  // The next wait has a stream of its own.
  void LeaveStream() {
    held_.push_back(stream_);
    stream_ = NewStream();
  }
  std::vector<CUstream> held_;

 protected:
  void TearDown() override {
    for (const CUstream stream : held_) {
      Set(release_);
      EXPECT_TRUE(Finishes(stream));
    }
    DriverTest::TearDown();
  }
  // Satisfies every wait of the test.
  uint64_t release_ = 0;
};

RULE_TEST(StreamValueTest, WorkBehindAWaitIsHeldUp,
          "work ordered after cuStreamWaitValue32 blocks until the condition is satisfied",
          MEMORY_OPERATIONS("cuStreamWaitValue32")) {
  volatile uint64_t* done = HostWord(0);
  volatile uint64_t* passed = HostWord(0);
  CUDA_OK(cuStreamWaitValue32_v2, stream_, address_, 3, CU_STREAM_WAIT_VALUE_EQ);
  ASSERT_EQ(Step(stream_, AddressOf(done), 0, 1, 1000), CUDA_SUCCESS);
  // Another stream's work goes on meanwhile, and this one's does not.
  const CUstream other = NewStream();
  ASSERT_EQ(Step(other, AddressOf(passed), 0, 1, 10 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, other);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, stream_);
  EXPECT_EQ(*done, 0u);
  Set(3);
  EXPECT_TRUE(Finishes(stream_));
  EXPECT_EQ(*done, 1u);
}

RULE_TEST(StreamValueTest, AnotherStreamsWriteReleasesAWait,
          "a stream that waits for a value goes on when another stream has written it",
          MEMORY_OPERATIONS("cuStreamWaitValue32, cuStreamWriteValue32")) {
  const CUstream writer = NewStream();
  CUDA_OK(cuStreamWaitValue32_v2, stream_, address_, 3, CU_STREAM_WAIT_VALUE_EQ);
  CUDA_OK(cuStreamWriteValue32_v2, writer, address_, 3, 0);
  EXPECT_TRUE(Finishes(stream_));
}

RULE_TEST(StreamValueTest, GreaterOrEqualIsTheDefault,
          "by default cuStreamWaitValue32 waits for (int32_t)(*addr - value) >= 0",
          MEMORY_OPERATIONS("cuStreamWaitValue32, CU_STREAM_WAIT_VALUE_GEQ")) {
  release_ = 100;
  ExpectGoesOn32(100, 100, 0);
  ExpectGoesOn32(101, 100, 0);
  ExpectHeldUp32(99, 100, 0);
}

RULE_TEST(StreamValueTest, GreaterOrEqualIsCyclic,
          "CU_STREAM_WAIT_VALUE_GEQ compares in a circle: a counter that wrapped is not smaller",
          MEMORY_OPERATIONS("cuStreamWaitValue32, CU_STREAM_WAIT_VALUE_GEQ")) {
  release_ = 5;
  ExpectGoesOn32(2, 0xffff'fff0, CU_STREAM_WAIT_VALUE_GEQ);
  ExpectHeldUp32(0xffff'fff0, 2, CU_STREAM_WAIT_VALUE_GEQ);
}

RULE_TEST(StreamValueTest, EqualWaitsForTheValueItself,
          "CU_STREAM_WAIT_VALUE_EQ waits for *addr == value",
          MEMORY_OPERATIONS("cuStreamWaitValue32, CU_STREAM_WAIT_VALUE_EQ")) {
  release_ = 7;
  ExpectGoesOn32(7, 7, CU_STREAM_WAIT_VALUE_EQ);
  ExpectHeldUp32(8, 7, CU_STREAM_WAIT_VALUE_EQ);
}

RULE_TEST(StreamValueTest, AndWaitsForACommonBit,
          "CU_STREAM_WAIT_VALUE_AND waits for (*addr & value) != 0",
          MEMORY_OPERATIONS("cuStreamWaitValue32, CU_STREAM_WAIT_VALUE_AND")) {
  release_ = 6;
  ExpectGoesOn32(12, 6, CU_STREAM_WAIT_VALUE_AND);
  ExpectHeldUp32(9, 6, CU_STREAM_WAIT_VALUE_AND);
}

RULE_TEST(StreamValueTest, NorWaitsForABitThatNeitherHas,
          "CU_STREAM_WAIT_VALUE_NOR waits for ~(*addr | value) != 0",
          MEMORY_OPERATIONS("cuStreamWaitValue32, CU_STREAM_WAIT_VALUE_NOR")) {
  int supported = 0;
  CUDA_OK(cuDeviceGetAttribute, &supported, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 0);
  if (!supported) GTEST_SKIP() << "the device has no CU_STREAM_WAIT_VALUE_NOR";
  release_ = 0;
  ExpectGoesOn32(0xf, 0xff, CU_STREAM_WAIT_VALUE_NOR);
  ExpectHeldUp32(0xffff'0000, 0x0000'ffff, CU_STREAM_WAIT_VALUE_NOR);
}

RULE_TEST(StreamValueTest, WaitsOf64BitsSeeAllOfThem,
          "cuStreamWaitValue64 compares 64 bits, cyclically by default",
          MEMORY_OPERATIONS("cuStreamWaitValue64")) {
  release_ = uint64_t{1} << 40;
  ExpectGoesOn64(uint64_t{1} << 40, uint64_t{1} << 40, CU_STREAM_WAIT_VALUE_EQ);
  ExpectGoesOn64(uint64_t{1} << 40, 5, CU_STREAM_WAIT_VALUE_GEQ);
  ExpectHeldUp64(5, uint64_t{1} << 40, CU_STREAM_WAIT_VALUE_GEQ);
}

RULE_TEST(StreamValueTest, WaitsOf32BitsSeeNoMore,
          "cuStreamWaitValue32 looks at 32 bits: the word behind them does not matter",
          MEMORY_OPERATIONS("cuStreamWaitValue32")) {
  *word_ = 0xdead'0000'0007;
  CUDA_OK(cuStreamWaitValue32_v2, stream_, address_, 7, CU_STREAM_WAIT_VALUE_EQ);
  EXPECT_TRUE(Finishes(stream_));
}

RULE_TEST(StreamValueTest, AWriteIsMadeInStreamOrder,
          "cuStreamWriteValue32 writes after the work before it in the stream",
          MEMORY_OPERATIONS("cuStreamWriteValue32")) {
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream_), CUDA_SUCCESS);
  ASSERT_EQ(Step(stream_, address_, 0, 5, kMs), CUDA_SUCCESS);
  CUDA_OK(cuStreamWriteValue32_v2, stream_, address_, 9, 0);
  EXPECT_EQ(*word_, 0u);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(*word_, 9u);
}

RULE_TEST(StreamValueTest, AWriteOf32BitsLeavesTheNextWordAlone,
          "cuStreamWriteValue32 writes 32 bits", MEMORY_OPERATIONS("cuStreamWriteValue32")) {
  *word_ = 0x1111'1111'2222'2222;
  CUDA_OK(cuStreamWriteValue32_v2, stream_, address_, 9, 0);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(*word_, 0x1111'1111'0000'0009u);
}

RULE_TEST(StreamValueTest, AWriteOf64BitsWritesThemAll, "cuStreamWriteValue64 writes 64 bits",
          MEMORY_OPERATIONS("cuStreamWriteValue64")) {
  CUDA_OK(cuStreamWriteValue64_v2, stream_, address_, 0x1234'5678'9abc'def0, 0);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(*word_, 0x1234'5678'9abc'def0u);
}

RULE_TEST(StreamValueTest, DeviceMemoryMayBeWaitedForAndWritten,
          "the word of a stream memory operation may be in device memory",
          MEMORY_OPERATIONS("cuStreamWriteValue32")) {
  const CUdeviceptr word = NewWord(0);
  const CUstream writer = NewStream();
  CUDA_OK(cuStreamWaitValue32_v2, stream_, word, 4, CU_STREAM_WAIT_VALUE_EQ);
  CUDA_OK(cuStreamWriteValue32_v2, writer, word, 4, 0);
  EXPECT_TRUE(Finishes(stream_));
  EXPECT_EQ(ReadWord(word), 4u);
}

RULE_TEST(StreamValueTest, ManagedMemoryIsRefused,
          "stream memory operations cannot be used with managed memory",
          MEMORY_OPERATIONS("cuStreamWaitValue32, cuStreamWriteValue32")) {
  CUdeviceptr managed = 0;
  CUDA_OK(cuMemAllocManaged, &managed, 4096, CU_MEM_ATTACH_GLOBAL);
  EXPECT_NE(CUDA(cuStreamWriteValue32_v2)(stream_, managed, 1, 0), CUDA_SUCCESS);
}

RULE_TEST(StreamValueTest, AddressesAreAligned,
          "the word of a stream memory operation lies at a multiple of its size",
          MEMORY_OPERATIONS("cuStreamWaitValue32, CUDA_ERROR_INVALID_VALUE")) {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32_v2, stream_, address_ + 2, 1, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64_v2, stream_, address_ + 4, 1, 0);
}

RULE_TEST(StreamValueTest, UnknownFlagsAreRefused,
          "flags beyond CUstreamWaitValue_flags and CUstreamWriteValue_flags are invalid",
          MEMORY_OPERATIONS("CUstreamWaitValue_flags, CUstreamWriteValue_flags")) {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32_v2, stream_, address_, 0, 0x100);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32_v2, stream_, address_, 0, 0x100);
}

RULE_TEST(StreamValueTest, ABatchKeepsTheOrderOfItsArray,
          "the operations of a batch are enqueued in the order they appear in the array",
          MEMORY_OPERATIONS("cuStreamBatchMemOp")) {
  CUstreamBatchMemOpParams operations[] = {Write(address_, 1), Wait(address_, 1),
                                           Write(address_, 2), Wait(address_, 2),
                                           Write(address_ + 4, 7)};
  CUDA_OK(cuStreamBatchMemOp_v2, stream_, 5, operations, 0);
  EXPECT_TRUE(Finishes(stream_));
  EXPECT_EQ(*word_, 0x7'0000'0002u);
}

RULE_TEST(StreamValueTest, ABatchHasLessThan256Operations,
          "the number of operations of a batch must be less than 256",
          MEMORY_OPERATIONS("cuStreamBatchMemOp")) {
  std::vector<CUstreamBatchMemOpParams> operations(256, Write(address_, 1));
  CUDA_OK(cuStreamBatchMemOp_v2, stream_, 255, operations.data(), 0);
  EXPECT_NE(CUDA(cuStreamBatchMemOp_v2)(stream_, 256, operations.data(), 0), CUDA_SUCCESS);
}

RULE_TEST(StreamValueTest, ABatchHasNoFlags, "the flags of a batch are reserved and must be 0",
          MEMORY_OPERATIONS("cuStreamBatchMemOp")) {
  CUstreamBatchMemOpParams operation = Write(address_, 1);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2, stream_, 1, &operation, 8);
}

}  // namespace
}  // namespace prorata::conformance
