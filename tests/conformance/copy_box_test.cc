// Copies of rectangles and boxes between linear memory.

#include <cstring>
#include <numeric>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kCopy2D[] = "CUDA Driver API 13.0, Memory Management, cuMemcpy2D";
constexpr char kCopy3D[] = "CUDA Driver API 13.0, Memory Management, cuMemcpy3D";

// A device image of 64 rows of 256 bytes, and a host one of the same shape whose bytes are
// (row * 7 + column).
class BoxTest : public DriverTest {
 protected:
  static constexpr size_t kPitch = 256;
  static constexpr size_t kRows = 64;

  void SetUp() override {
    DriverTest::SetUp();
    CUDA_OK(cuMemAlloc_v2, &device_, kPitch * kRows);
    CUDA_OK(cuMemsetD8_v2, device_, 0xee, kPitch * kRows);
    host_.resize(kPitch * kRows);
    for (size_t i = 0; i < host_.size(); ++i) host_[i] = Expected(i / kPitch, i % kPitch);
  }
  static uint8_t Expected(size_t row, size_t column) {
    return static_cast<uint8_t>((row * 7 + column) % 200);
  }
  CUDA_MEMCPY2D Upload(size_t width, size_t height) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = host_.data();
    copy.srcPitch = kPitch;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = device_;
    copy.dstPitch = kPitch;
    copy.WidthInBytes = width;
    copy.Height = height;
    return copy;
  }
  std::vector<uint8_t> Read() {
    std::vector<uint8_t> bytes(kPitch * kRows);
    EXPECT_EQ(CUDA(cuMemcpyDtoH_v2)(bytes.data(), device_, bytes.size()), CUDA_SUCCESS);
    return bytes;
  }

  CUdeviceptr device_ = 0;
  std::vector<uint8_t> host_;
};

RULE_TEST(BoxTest, RowsKeepTheirPitch,
          "a 2D copy moves WidthInBytes of each row, source and destination at their own pitch",
          kCopy2D) {
  CUDA_MEMCPY2D copy = Upload(100, 10);
  copy.dstPitch = 128;
  CUDA_OK(cuMemcpy2D_v2, &copy);
  const auto bytes = Read();
  for (size_t row = 0; row < 10; ++row) {
    EXPECT_EQ(std::memcmp(&bytes[row * 128], &host_[row * kPitch], 100), 0) << row;
    EXPECT_EQ(bytes[row * 128 + 100], 0xee) << row;
  }
  EXPECT_EQ(bytes[10 * 128], 0xee);
}

RULE_TEST(BoxTest, OriginsMoveBothSides,
          "srcXInBytes and srcY, dstXInBytes and dstY give the first byte of each side", kCopy2D) {
  CUDA_MEMCPY2D copy = Upload(20, 5);
  copy.srcXInBytes = 30;
  copy.srcY = 4;
  copy.dstXInBytes = 11;
  copy.dstY = 9;
  CUDA_OK(cuMemcpy2D_v2, &copy);
  const auto bytes = Read();
  for (size_t row = 0; row < 5; ++row) {
    for (size_t column = 0; column < 20; ++column) {
      EXPECT_EQ(bytes[(row + 9) * kPitch + column + 11], Expected(row + 4, column + 30));
    }
  }
  EXPECT_EQ(bytes[9 * kPitch + 10], 0xee);
  EXPECT_EQ(bytes[8 * kPitch + 11], 0xee);
  EXPECT_EQ(bytes[14 * kPitch + 11], 0xee);
}

RULE_TEST(BoxTest, NoPitchMeansPacked, "a pitch of 0 means rows right behind each other", kCopy2D) {
  CUDA_MEMCPY2D copy = Upload(8, 4);
  copy.dstPitch = 0;
  CUDA_OK(cuMemcpy2D_v2, &copy);
  const auto bytes = Read();
  for (size_t row = 0; row < 4; ++row) EXPECT_EQ(bytes[row * 8 + 7], Expected(row, 7));
}

RULE_TEST(BoxTest, ARowFitsIntoItsPitch,
          "a pitch must be at least WidthInBytes plus the X origin, on either side", kCopy2D) {
  CUDA_MEMCPY2D copy = Upload(100, 2);
  copy.srcPitch = 99;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2, &copy);
  copy = Upload(100, 2);
  copy.dstPitch = 150;
  copy.dstXInBytes = 51;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2, &copy);
  copy.dstXInBytes = 50;
  CUDA_OK(cuMemcpy2D_v2, &copy);
}

RULE_TEST(BoxTest, ThePitchHasALimit, "a pitch above CU_DEVICE_ATTRIBUTE_MAX_PITCH is refused",
          kCopy2D) {
  int limit = 0;
  CUDA_OK(cuDeviceGetAttribute, &limit, CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0);
  CUDA_MEMCPY2D copy = Upload(100, 1);
  copy.srcPitch = static_cast<size_t>(limit) + 1;
  CUDA_IS(ButOnGpu(CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS), cuMemcpy2D_v2, &copy);
}

RULE_TEST(BoxTest, RectanglesStayInsideTheAllocation,
          "a rectangle whose last row lies outside its device memory is refused", kCopy2D) {
  CUdeviceptr large = 0;
  CUDA_OK(cuMemAlloc_v2, &large, 2 << 20);
  CUDA_MEMCPY2D copy = Upload(100, 2);
  copy.dstDevice = large;
  copy.dstPitch = 64 << 20;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2, &copy);
}

RULE_TEST(BoxTest, UnifiedSidesAreFoundByTheirAddress,
          "a side of CU_MEMORYTYPE_UNIFIED is host or device memory as its address says", kCopy2D) {
  CUDA_MEMCPY2D copy = Upload(16, 3);
  copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = reinterpret_cast<CUdeviceptr>(host_.data());
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  CUDA_OK(cuMemcpy2D_v2, &copy);
  EXPECT_EQ(Read()[2 * kPitch + 15], Expected(2, 15));
}

RULE_TEST(BoxTest, AnUnknownKindOfMemoryIsRefused,
          "a memory type outside the enumeration is CUDA_ERROR_INVALID_VALUE", kCopy2D) {
  CUDA_MEMCPY2D copy = Upload(16, 3);
  copy.srcMemoryType = static_cast<CUmemorytype>(9);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2, &copy);
}

RULE_TEST(BoxTest, UnalignedCopiesDoTheSame,
          "cuMemcpy2DUnaligned has cuMemcpy2D's meaning for every pitch",
          "CUDA Driver API 13.0, Memory Management, cuMemcpy2DUnaligned") {
  CUDA_MEMCPY2D copy = Upload(13, 6);
  copy.dstPitch = 17;
  CUDA_OK(cuMemcpy2DUnaligned_v2, &copy);
  const auto bytes = Read();
  for (size_t row = 0; row < 6; ++row) EXPECT_EQ(bytes[row * 17 + 12], Expected(row, 12));
}

RULE_TEST(
    BoxTest, RectanglesFollowTheirStream,
    "cuMemcpy2DAsync runs in its stream's order and reads pageable rows before it returns",
    "CUDA Driver API 13.0, Memory Management, cuMemcpy2DAsync; API synchronization behavior") {
  CUstream stream = NewStream();
  const CUdeviceptr word = NewWord(0);
  const std::vector<uint8_t> rows = host_;
  for (const uint64_t ms : kEverLongerMs) {
    ASSERT_EQ(Step(stream, word, 1, 1, ms * kMs), CUDA_SUCCESS);
    CUDA_MEMCPY2D copy = Upload(100, 10);
    CUDA_OK(cuMemcpy2DAsync_v2, &copy, stream);
    std::fill(host_.begin(), host_.end(), 0);
    const bool before_its_turn = IsBusy(stream);
    CUDA_OK(cuStreamSynchronize, stream);
    EXPECT_EQ(Read()[9 * kPitch + 99], Expected(9, 99));
    if (before_its_turn) return;
    host_ = rows;
  }
}

// The image seen as 4 slices of 16 rows.
RULE_TEST(BoxTest, SlicesKeepTheirHeight,
          "a 3D copy's slices lie Height rows of Pitch bytes apart; Z, Y and X give its origin",
          kCopy3D) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host_.data();
  copy.srcPitch = kPitch;
  copy.srcHeight = 16;
  copy.srcZ = 1;
  copy.srcY = 2;
  copy.srcXInBytes = 3;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = device_;
  copy.dstPitch = 64;
  copy.dstHeight = 8;
  copy.dstZ = 1;
  copy.WidthInBytes = 40;
  copy.Height = 5;
  copy.Depth = 3;
  CUDA_OK(cuMemcpy3D_v2, &copy);
  const auto bytes = Read();
  for (size_t z = 0; z < 3; ++z) {
    for (size_t y = 0; y < 5; ++y) {
      const size_t at = (z + 1) * 8 * 64 + y * 64;
      EXPECT_EQ(bytes[at], Expected((z + 1) * 16 + y + 2, 3)) << z << ' ' << y;
      EXPECT_EQ(bytes[at + 39], Expected((z + 1) * 16 + y + 2, 42)) << z << ' ' << y;
      EXPECT_EQ(bytes[at + 40], 0xee);
    }
    EXPECT_EQ(bytes[(z + 1) * 8 * 64 + 5 * 64], 0xee);
  }
}

RULE_TEST(BoxTest, ASliceFitsIntoItsHeight,
          "srcHeight must be at least Height + srcY, dstHeight at least Height + dstY", kCopy3D) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host_.data();
  copy.srcPitch = kPitch;
  copy.srcHeight = 16;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = device_;
  copy.dstPitch = 64;
  copy.dstHeight = 4;
  copy.WidthInBytes = 40;
  copy.Height = 5;
  copy.Depth = 2;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D_v2, &copy);
  copy.dstHeight = 5;
  CUDA_OK(cuMemcpy3D_v2, &copy);
}

RULE_TEST(BoxTest, ThereIsOneLevelOfDetail, "srcLOD and dstLOD must be 0", kCopy3D) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host_.data();
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = device_;
  copy.WidthInBytes = 40;
  copy.Height = copy.Depth = 1;
  copy.srcLOD = 1;
  CUDA_IS(ButOnGpu(CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS), cuMemcpy3D_v2, &copy);
}

}  // namespace
}  // namespace prorata::conformance
