// Copies of plain bytes: all directions, and who waits for whom.

#include <cstring>
#include <numeric>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kMemcpySync[] =
    "CUDA Driver API 13.0, API synchronization behavior, Memcpy, Synchronous";
constexpr char kMemcpyAsync[] =
    "CUDA Driver API 13.0, API synchronization behavior, Memcpy, Asynchronous";

class CopyTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    CUDA_OK(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
    CUDA_OK(cuMemAlloc_v2, &a_, kBytes);
    CUDA_OK(cuMemAlloc_v2, &b_, kBytes);
    void* pinned = nullptr;
    CUDA_OK(cuMemAllocHost_v2, &pinned, kBytes);
    pinned_ = static_cast<uint8_t*>(pinned);
    pattern_.resize(kBytes);
    std::iota(pattern_.begin(), pattern_.end(), 1);
    busy_ = NewWord(0);
  }
  // The stream is occupied for so long, and `busy_` is 1 afterwards.
  void Occupy(CUstream stream, uint64_t ms) {
    ASSERT_EQ(Step(stream, busy_, 0, 1, ms * kMs), CUDA_SUCCESS);
  }
  void Fill(CUdeviceptr device) {
    ASSERT_EQ(CUDA(cuMemcpyHtoD_v2)(device, pattern_.data(), kBytes), CUDA_SUCCESS);
  }
  std::vector<uint8_t> Read(CUdeviceptr device) {
    std::vector<uint8_t> bytes(kBytes);
    EXPECT_EQ(CUDA(cuMemcpyDtoH_v2)(bytes.data(), device, kBytes), CUDA_SUCCESS);
    return bytes;
  }

  static constexpr size_t kBytes = 100'000;
  CUstream stream_ = nullptr;
  CUdeviceptr a_ = 0;
  CUdeviceptr b_ = 0;
  CUdeviceptr busy_ = 0;
  uint8_t* pinned_ = nullptr;
  std::vector<uint8_t> pattern_;
};

RULE_TEST(CopyTest, ThereAndBack, "cuMemcpyHtoD and cuMemcpyDtoH move bytes unchanged",
          "CUDA Driver API 13.0, Memory Management, cuMemcpyHtoD and cuMemcpyDtoH") {
  Fill(a_);
  EXPECT_EQ(Read(a_), pattern_);
}

RULE_TEST(CopyTest, OnTheDevice, "cuMemcpyDtoD copies device memory to device memory",
          "CUDA Driver API 13.0, Memory Management, cuMemcpyDtoD") {
  Fill(a_);
  CUDA_OK(cuMemcpyDtoD_v2, b_, a_, kBytes);
  EXPECT_EQ(Read(b_), pattern_);
}

RULE_TEST(CopyTest, PointersSayTheDirection,
          "cuMemcpy infers the kind of copy from the pointers, pageable host memory included",
          "CUDA Driver API 13.0, Memory Management, cuMemcpy; Unified Addressing") {
  std::vector<uint8_t> back(kBytes);
  CUDA_OK(cuMemcpy, a_, reinterpret_cast<CUdeviceptr>(pattern_.data()), kBytes);
  CUDA_OK(cuMemcpy, b_, a_, kBytes);
  CUDA_OK(cuMemcpy, reinterpret_cast<CUdeviceptr>(pinned_), b_, kBytes);
  CUDA_OK(cuMemcpy, reinterpret_cast<CUdeviceptr>(back.data()),
          reinterpret_cast<CUdeviceptr>(pinned_), kBytes);
  EXPECT_EQ(back, pattern_);
}

RULE_TEST(CopyTest, PartsAndOffsets, "a copy touches the bytes it names and no others",
          "CUDA Driver API 13.0, Memory Management, cuMemcpyHtoD") {
  CUDA_OK(cuMemsetD8_v2, a_, 0xee, kBytes);
  CUDA_OK(cuMemcpyHtoD_v2, a_ + 100, pattern_.data(), 7);
  const auto bytes = Read(a_);
  EXPECT_EQ(bytes[99], 0xee);
  EXPECT_EQ(std::memcmp(bytes.data() + 100, pattern_.data(), 7), 0);
  EXPECT_EQ(bytes[107], 0xee);
}

RULE_TEST(CopyTest, NothingIsCopiedWithoutComplaint, "a copy of 0 bytes succeeds",
          "CUDA Driver API 13.0, Memory Management, cuMemcpyHtoD (ByteCount is not restricted)") {
  CUDA_OK(cuMemcpyHtoD_v2, a_, pattern_.data(), 0);
  CUDA_OK(cuMemcpyDtoHAsync_v2, pinned_, a_, 0, stream_);
}

RULE_TEST(CopyTest, CopiesStayInsideTheAllocation,
          "a copy over the end of device memory is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Memory Management, cuMemcpyHtoD (return values)") {
  std::vector<uint8_t> large(4 << 20);
  CUdeviceptr small = 0;
  CUDA_OK(cuMemAlloc_v2, &small, 2 << 20);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2, small, large.data(), large.size());
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2, large.data(), small, large.size());
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD_v2, small + (1 << 20), small, 2 << 20);
}

RULE_TEST(CopyTest, FreedMemoryIsNotCopied, "a copy to or from freed memory is refused",
          "CUDA Driver API 13.0, Memory Management, cuMemcpyHtoD (return values)") {
  CUdeviceptr gone = 0;
  CUDA_OK(cuMemAlloc_v2, &gone, 8 << 20);
  CUDA_OK(cuMemFree_v2, gone);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2, gone, pattern_.data(), 8);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2, pinned_, gone, 8);
}

RULE_TEST(CopyTest, APageableSourceMayBeChangedAtOnce,
          "an asynchronous copy from pageable memory has taken the bytes when it returns",
          kMemcpyAsync) {
  for (const uint64_t ms : kEverLongerMs) {
    Occupy(stream_, ms);
    std::vector<uint8_t> source = pattern_;
    CUDA_OK(cuMemcpyHtoDAsync_v2, a_, source.data(), kBytes, stream_);
    std::fill(source.begin(), source.end(), 0);
    const bool before_its_turn = IsBusy(stream_);
    CUDA_OK(cuStreamSynchronize, stream_);
    EXPECT_EQ(Read(a_), pattern_);
    if (before_its_turn) return;
  }
}

RULE_TEST(CopyTest, APinnedSourceIsReadWhenItsTurnComes,
          "an asynchronous copy from pinned memory reads it in stream order, not at the call",
          kMemcpyAsync) {
  std::memset(pinned_, 0, 64);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream_), CUDA_SUCCESS);
  CUDA_OK(cuMemcpyHtoDAsync_v2, a_, pinned_, 64, stream_);
  std::memset(pinned_, 9, 64);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(Read(a_)[63], 9);
}

RULE_TEST(CopyTest, AsyncToPinnedMemoryDoesNotWait,
          "an asynchronous copy from the device to pinned memory returns before it is done",
          kMemcpyAsync) {
  Fill(a_);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream_), CUDA_SUCCESS);
  CUDA_OK(cuMemcpyDtoHAsync_v2, pinned_, a_, kBytes, stream_);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, stream_);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(std::memcmp(pinned_, pattern_.data(), kBytes), 0);
}

RULE_TEST(CopyTest, AsyncToPageableMemoryIsDoneOnReturn,
          "an asynchronous copy from the device to pageable memory returns only when it is done",
          "CUDA Driver API 12.0, API synchronization behavior, Memcpy, Asynchronous, 1 (13.0: "
          "might be synchronous)") {
  Fill(a_);
  std::vector<uint8_t> back(kBytes);
  Occupy(stream_, 20);
  CUDA_OK(cuMemcpyDtoHAsync_v2, back.data(), a_, kBytes, stream_);
  EXPECT_EQ(back, pattern_);
}

RULE_TEST(CopyTest, HostToHostIsSynchronous,
          "an asynchronous copy from host memory to host memory is fully synchronous",
          kMemcpyAsync) {
  std::vector<uint8_t> back(kBytes);
  CUDA_OK(cuMemcpyAsync, reinterpret_cast<CUdeviceptr>(back.data()),
          reinterpret_cast<CUdeviceptr>(pattern_.data()), kBytes, stream_);
  EXPECT_EQ(back, pattern_);
}

RULE_TEST(CopyTest, ASyncCopyToTheHostIsDoneOnReturn,
          "a synchronous copy from the device returns only once it has completed", kMemcpySync) {
  Fill(a_);
  std::memset(pinned_, 0, kBytes);
  Occupy(nullptr, 20);
  CUDA_OK(cuMemcpyDtoH_v2, pinned_, a_, kBytes);
  EXPECT_EQ(std::memcmp(pinned_, pattern_.data(), kBytes), 0);
  CUDA_OK(cuStreamQuery, nullptr);
}

RULE_TEST(CopyTest, ASyncCopyFromPinnedMemoryIsDoneOnReturn,
          "a synchronous copy from pinned memory is synchronous with respect to the host",
          kMemcpySync) {
  std::memcpy(pinned_, pattern_.data(), kBytes);
  Occupy(nullptr, 20);
  CUDA_OK(cuMemcpyHtoD_v2, a_, pinned_, kBytes);
  std::memset(pinned_, 0, kBytes);
  EXPECT_EQ(Read(a_), pattern_);
}

RULE_TEST(CopyTest, ASyncCopyFromPageableMemoryWaitsForItsStream,
          "a synchronous copy from pageable memory synchronizes with the default stream first",
          kMemcpySync) {
  Occupy(nullptr, 20);
  CUevent done = NewEvent();
  CUDA_OK(cuEventRecord, done, nullptr);
  CUDA_OK(cuMemcpyHtoD_v2, a_, pattern_.data(), 64);
  CUDA_OK(cuEventQuery, done);
}

RULE_TEST(CopyTest, ACopyOnTheDeviceDoesNotWait,
          "for a copy from device to device memory no host-side synchronization is performed",
          kMemcpySync) {
  ASSERT_EQ(NewGate().Hold(nullptr), CUDA_SUCCESS);
  CUDA_OK(cuMemcpyDtoD_v2, b_, a_, 64);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, nullptr);
}

RULE_TEST(CopyTest, CopiesFollowTheirStream,
          "an asynchronous copy runs after what its stream was given before, and before what "
          "follows",
          "CUDA C++ Programming Guide 13.0, 6.2.8.5 Streams; Driver API, cuMemcpyDtoDAsync") {
  const CUdeviceptr word = NewWord(1);
  const CUdeviceptr copy = NewWord(0);
  ASSERT_EQ(Step(stream_, word, 0, 8, 20 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuMemcpyDtoDAsync_v2, copy, word, 8, stream_);
  ASSERT_EQ(Step(stream_, word, 0, 9, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(ReadWord(copy), 8u);
  EXPECT_EQ(ReadWord(word), 9u);
}

RULE_TEST(CopyTest, APlainCopyIsOrderedWithBlockingStreams,
          "a synchronous copy on the default stream comes after the work of blocking streams",
          "CUDA Driver API 13.0, Stream synchronization behavior, Legacy default stream") {
  CUstream blocking;
  CUDA_OK(cuStreamCreate, &blocking, CU_STREAM_DEFAULT);
  Occupy(blocking, 20);
  uint64_t seen = 0;
  CUDA_OK(cuMemcpyDtoH_v2, &seen, busy_, 8);
  EXPECT_EQ(seen, 1u);
}

RULE_TEST(CopyTest, BatchesCopyAllTheirPairs,
          "cuMemcpyBatchAsync does every copy of the batch, in its stream's order",
          "CUDA Driver API 13.0, Memory Management, cuMemcpyBatchAsync") {
  Fill(a_);
  CUdeviceptr destinations[] = {b_, b_ + 1000, reinterpret_cast<CUdeviceptr>(pinned_)};
  CUdeviceptr sources[] = {a_ + 10, a_ + 20, a_ + 30};
  size_t sizes[] = {5, 6, 7};
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first = 0;
  CUDA_OK(cuMemcpyBatchAsync_v2, destinations, sources, sizes, 3, &attributes, &first, 1, stream_);
  CUDA_OK(cuStreamSynchronize, stream_);
  const auto bytes = Read(b_);
  EXPECT_EQ(std::memcmp(bytes.data(), pattern_.data() + 10, 5), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 1000, pattern_.data() + 20, 6), 0);
  EXPECT_EQ(std::memcmp(pinned_, pattern_.data() + 30, 7), 0);
}

RULE_TEST(CopyTest, BatchesNeedAStreamOfTheirOwn,
          "cuMemcpyBatchAsync refuses the legacy default stream",
          "CUDA Driver API 13.0, Memory Management, cuMemcpyBatchAsync (hStream must not be the "
          "legacy NULL stream)") {
  CUdeviceptr destination = b_;
  CUdeviceptr source = a_;
  size_t size = 8;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync_v2, &destination, &source, &size, 1,
          &attributes, &first, 1, nullptr);
}

}  // namespace
}  // namespace prorata::conformance
