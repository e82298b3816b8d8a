// cuMemset and its relatives.

#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kFill[] =
    "CUDA Driver API 13.0, Memory Management, cuMemsetD8, cuMemsetD16, cuMemsetD32";
constexpr char kFill2D[] =
    "CUDA Driver API 13.0, Memory Management, cuMemsetD2D8, cuMemsetD2D16, cuMemsetD2D32";
constexpr char kSync[] = "CUDA Driver API 13.0, API synchronization behavior, Memset";

class FillTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    CUDA_OK(cuMemAlloc_v2, &device_, kBytes);
    CUDA_OK(cuMemsetD8_v2, device_, 0xee, kBytes);
  }
  std::vector<uint8_t> Read() {
    std::vector<uint8_t> bytes(kBytes);
    EXPECT_EQ(CUDA(cuMemcpyDtoH_v2)(bytes.data(), device_, kBytes), CUDA_SUCCESS);
    return bytes;
  }

  static constexpr size_t kBytes = 4096;
  CUdeviceptr device_ = 0;
};

RULE_TEST(FillTest, BytesAreFilledAndNoOthers,
          "cuMemsetD8 sets exactly N bytes from the address on", kFill) {
  CUDA_OK(cuMemsetD8_v2, device_ + 3, 0x11, 5);
  const auto bytes = Read();
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(bytes[i], i >= 3 && i < 8 ? 0x11 : 0xee) << i;
}

RULE_TEST(FillTest, HalfWordsAreFilled, "cuMemsetD16 sets N 16-bit values", kFill) {
  CUDA_OK(cuMemsetD16_v2, device_ + 2, 0x0506, 3);
  const auto bytes = Read();
  EXPECT_EQ(bytes[1], 0xee);
  for (size_t i = 2; i < 8; ++i) EXPECT_EQ(bytes[i], i % 2 ? 0x05 : 0x06) << i;
  EXPECT_EQ(bytes[8], 0xee);
}

RULE_TEST(FillTest, WordsAreFilled, "cuMemsetD32 sets N 32-bit values", kFill) {
  CUDA_OK(cuMemsetD32_v2, device_ + 4, 0x01020304, 2);
  const auto bytes = Read();
  EXPECT_EQ(bytes[3], 0xee);
  for (size_t i = 4; i < 12; ++i) EXPECT_EQ(bytes[i], 4 - i % 4) << i;
  EXPECT_EQ(bytes[12], 0xee);
}

RULE_TEST(FillTest, HalfWordsLieAtEvenAddresses, "cuMemsetD16's address must be two-byte aligned",
          "CUDA Driver API 13.0, Memory Management, cuMemsetD16") {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD16_v2, device_ + 1, 0, 1);
}

RULE_TEST(FillTest, WordsLieAtMultiplesOfFour, "cuMemsetD32's address must be four-byte aligned",
          "CUDA Driver API 13.0, Memory Management, cuMemsetD32") {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2, device_ + 2, 0, 1);
}

RULE_TEST(FillTest, FillsStayInsideTheAllocation,
          "a fill that runs over the end of its memory is CUDA_ERROR_INVALID_VALUE", kFill) {
  CUdeviceptr large = 0;
  CUDA_OK(cuMemAlloc_v2, &large, 4 << 20);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2, large, 0, size_t{1} << 40);
  CUDA_OK(cuMemFree_v2, large);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2, large, 0, 16);
}

RULE_TEST(FillTest, RowsAreFilledByTheirPitch,
          "a 2D fill sets Width elements of each of Height rows, dstPitch bytes apart", kFill2D) {
  CUDA_OK(cuMemsetD2D8_v2, device_, 64, 0x77, 3, 4);
  CUDA_OK(cuMemsetD2D16_v2, device_ + 16, 64, 0x0102, 2, 4);
  CUDA_OK(cuMemsetD2D32_v2, device_ + 32, 64, 0x0a0b0c0d, 1, 4);
  const auto bytes = Read();
  for (size_t row = 0; row < 5; ++row) {
    const uint8_t* at = bytes.data() + 64 * row;
    const bool inside = row < 4;
    EXPECT_EQ(at[2], inside ? 0x77 : 0xee) << row;
    EXPECT_EQ(at[3], 0xee) << row;
    EXPECT_EQ(at[18], inside ? 0x02 : 0xee) << row;
    EXPECT_EQ(at[20], 0xee) << row;
    EXPECT_EQ(at[35], inside ? 0x0a : 0xee) << row;
    EXPECT_EQ(at[36], 0xee) << row;
  }
}

RULE_TEST(FillTest, ARowFitsIntoItsPitch,
          "a pitch smaller than the row is refused, unless there is one row only", kFill2D) {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D8_v2, device_, 32, 0, 33, 2);
  CUDA_OK(cuMemsetD2D8_v2, device_, 0, 0, 33, 1);  // the pitch is unused then
}

RULE_TEST(FillTest, FillsFollowTheirStream,
          "an asynchronous fill runs in its stream's order, after what was submitted before",
          "CUDA Driver API 13.0, Memory Management, cuMemsetD32Async") {
  CUstream stream = NewStream();
  const CUdeviceptr word = NewWord(1);
  ASSERT_EQ(Step(stream, word, 0, 9, 20 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuMemsetD32Async, word, 5, 1, stream);
  ASSERT_EQ(Step(stream, word, 10, 0, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(ReadWord(word), 50u);
}

RULE_TEST(FillTest, AFillOfDeviceMemoryDoesNotWait,
          "a synchronous memset of device memory is asynchronous with respect to the host", kSync) {
  ASSERT_EQ(NewGate().Hold(nullptr), CUDA_SUCCESS);
  CUDA_OK(cuMemsetD8_v2, device_, 0, kBytes);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, nullptr);
}

RULE_TEST(FillTest, AFillOfPinnedMemoryWaits,
          "a synchronous memset of pinned host memory is done when it returns", kSync) {
  void* host = nullptr;
  CUDA_OK(cuMemAllocHost_v2, &host, 64);
  auto* bytes = static_cast<volatile uint8_t*>(host);
  bytes[63] = 0;
  const CUdeviceptr word = NewWord(1);
  ASSERT_EQ(Step(nullptr, word, 1, 1, 20 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuMemsetD8_v2, reinterpret_cast<CUdeviceptr>(host), 7, 64);
  EXPECT_EQ(bytes[63], 7);
}

RULE_TEST(FillTest, AFillOfManagedMemoryWaits,
          "a synchronous memset of managed memory is done when it returns", kSync) {
  CUdeviceptr managed = 0;
  CUDA_OK(cuMemAllocManaged, &managed, 64, CU_MEM_ATTACH_GLOBAL);
  auto* bytes = reinterpret_cast<volatile uint8_t*>(managed);
  bytes[63] = 0;
  const CUdeviceptr word = NewWord(1);
  ASSERT_EQ(Step(nullptr, word, 1, 1, 20 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuMemsetD8_v2, managed, 7, 64);
  EXPECT_EQ(bytes[63], 7);
}

RULE_TEST(FillTest, AnAsyncFillNeverWaits,
          "the asynchronous versions of memset are always asynchronous with respect to the host",
          kSync) {
  void* host = nullptr;
  CUDA_OK(cuMemAllocHost_v2, &host, 64);
  ASSERT_EQ(NewGate().Hold(nullptr), CUDA_SUCCESS);
  CUDA_OK(cuMemsetD8Async, reinterpret_cast<CUdeviceptr>(host), 7, 64, nullptr);
  CUDA_OK(cuMemsetD8Async, device_, 7, 64, nullptr);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, nullptr);
}

}  // namespace
}  // namespace prorata::conformance
