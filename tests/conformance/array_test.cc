// Arrays and mipmapped arrays: their shapes, what they cost, and copies to and from them.

#include <cstring>
#include <numeric>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kArray3D[] = "CUDA Driver API 13.0, Memory Management, cuArray3DCreate";
constexpr char kMipmap[] = "CUDA Driver API 13.0, Memory Management, cuMipmappedArrayCreate";

class ArrayTest : public DriverTest {
 protected:
  static CUDA_ARRAY3D_DESCRIPTOR Shape(size_t width, size_t height, size_t depth,
                                       unsigned flags = 0) {
    return {width, height, depth, CU_AD_FORMAT_FLOAT, 1, flags};
  }
  CUresult Create(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    return CUDA(cuArray3DCreate_v2)(&array_, &shape);
  }
  // Made, described as it was asked for, and destroyed.
  void Check(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    ASSERT_EQ(Create(shape), CUDA_SUCCESS);
    CUDA_ARRAY3D_DESCRIPTOR seen{};
    CUDA_OK(cuArray3DGetDescriptor_v2, &seen, array_);
    EXPECT_EQ(seen.Width, shape.Width);
    EXPECT_EQ(seen.Height, shape.Height);
    EXPECT_EQ(seen.Depth, shape.Depth);
    EXPECT_EQ(seen.Format, shape.Format);
    EXPECT_EQ(seen.NumChannels, shape.NumChannels);
    EXPECT_EQ(seen.Flags, shape.Flags);
    CUDA_OK(cuArrayDestroy, array_);
  }

  CUarray array_ = nullptr;
};

RULE_TEST(ArrayTest, OneDimension, "only a width makes a 1D array", kArray3D) {
  Check(Shape(2048, 0, 0));
}

RULE_TEST(ArrayTest, TwoDimensions, "a depth of 0 makes a 2D array", kArray3D) {
  Check(Shape(64, 64, 0));
}

RULE_TEST(ArrayTest, ThreeDimensions, "three extents make a 3D array", kArray3D) {
  Check(Shape(16, 8, 4));
}

RULE_TEST(ArrayTest, LayersOfOneDimension,
          "LAYERED without a height makes a 1D layered array, of Depth layers", kArray3D) {
  Check(Shape(64, 0, 5, CUDA_ARRAY3D_LAYERED));
}

RULE_TEST(ArrayTest, LayersOfTwoDimensions, "LAYERED with three extents makes a 2D layered array",
          kArray3D) {
  Check(Shape(32, 16, 7, CUDA_ARRAY3D_LAYERED));
}

RULE_TEST(ArrayTest, ACubeHasSixSquareFaces,
          "a CUBEMAP is square and six deep; a layered one a multiple of six", kArray3D) {
  Check(Shape(32, 32, 6, CUDA_ARRAY3D_CUBEMAP));
  Check(Shape(32, 32, 12, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED));
  EXPECT_EQ(Create(Shape(32, 16, 6, CUDA_ARRAY3D_CUBEMAP)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Create(Shape(32, 32, 5, CUDA_ARRAY3D_CUBEMAP)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Create(Shape(32, 32, 12, CUDA_ARRAY3D_CUBEMAP)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Create(Shape(32, 32, 7, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED)),
            CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(ArrayTest, AnArrayHasAWidth, "an array without a width is CUDA_ERROR_INVALID_VALUE",
          kArray3D) {
  EXPECT_EQ(Create(Shape(0, 0, 0)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Create(Shape(0, 8, 0)), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(ArrayTest, ADepthNeedsAHeight,
          "a depth without a height is an array only when it is layered", kArray3D) {
  EXPECT_EQ(Create(Shape(8, 0, 4)), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(ArrayTest, ChannelsAre1Or2Or4, "NumChannels may be 1, 2 or 4", kArray3D) {
  for (unsigned channels : {1u, 2u, 4u}) {
    CUDA_ARRAY3D_DESCRIPTOR shape = Shape(16, 16, 0);
    shape.NumChannels = channels;
    Check(shape);
  }
  for (unsigned channels : {0u, 3u, 5u}) {
    CUDA_ARRAY3D_DESCRIPTOR shape = Shape(16, 16, 0);
    shape.NumChannels = channels;
    EXPECT_EQ(Create(shape), CUDA_ERROR_INVALID_VALUE) << channels;
  }
}

RULE_TEST(ArrayTest, FormatsAreThoseOfTheEnumeration,
          "all plain formats are accepted, and one outside the enumeration is not", kArray3D) {
  for (CUarray_format format :
       {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT32,
        CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_SIGNED_INT32,
        CU_AD_FORMAT_HALF, CU_AD_FORMAT_FLOAT}) {
    CUDA_ARRAY3D_DESCRIPTOR shape = Shape(16, 0, 0);
    shape.Format = format;
    Check(shape);
  }
  CUDA_ARRAY3D_DESCRIPTOR shape = Shape(16, 0, 0);
  shape.Format = static_cast<CUarray_format>(0x77);
  EXPECT_EQ(Create(shape), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(ArrayTest, SizesHaveTheDevicesLimits,
          "extents above the device's maximum texture extents are CUDA_ERROR_INVALID_VALUE",
          kArray3D) {
  int width = 0;
  CUDA_OK(cuDeviceGetAttribute, &width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 0);
  EXPECT_EQ(Create(Shape(static_cast<size_t>(width) + 1, 0, 0)), CUDA_ERROR_INVALID_VALUE);
  int depth = 0;
  CUDA_OK(cuDeviceGetAttribute, &depth, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 0);
  EXPECT_EQ(Create(Shape(4, 4, static_cast<size_t>(depth) + 1, CUDA_ARRAY3D_LAYERED)),
            CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(ArrayTest, ArraysTakeDeviceMemoryAndGiveItBack,
          "an array is device memory of at least its elements' bytes until it is destroyed",
          "CUDA Driver API 13.0, Memory Management, cuArrayCreate and cuArrayDestroy") {
  const uint64_t before = FreeBytes();
  ASSERT_EQ(Create(Shape(2048, 2048, 0)), CUDA_SUCCESS);
  EXPECT_LE(FreeBytes(), before - 2048 * 2048 * 4);
  CUDA_OK(cuArrayDestroy, array_);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(ArrayTest, ADestroyedArrayIsNoHandle,
          "cuArrayDestroy of a destroyed array is CUDA_ERROR_INVALID_HANDLE",
          "CUDA Driver API 13.0, Memory Management, cuArrayDestroy (return values)") {
  SIMULATED_ONLY("a stale handle is undefined behaviour on a GPU");
  ASSERT_EQ(Create(Shape(64, 0, 0)), CUDA_SUCCESS);
  CUDA_OK(cuArrayDestroy, array_);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy, array_);
}

RULE_TEST(ArrayTest, BytesOfARowComeBack, "a 1D array holds what cuMemcpyHtoA put into it",
          "CUDA Driver API 13.0, Memory Management, cuMemcpyHtoA and cuMemcpyAtoH") {
  ASSERT_EQ(Create(Shape(64, 0, 0)), CUDA_SUCCESS);
  std::vector<float> row(64);
  std::vector<float> back(64);
  std::iota(row.begin(), row.end(), 0.5f);
  CUDA_OK(cuMemcpyHtoA_v2, array_, 0, row.data(), 256);
  CUDA_OK(cuMemcpyAtoH_v2, back.data(), array_, 128, 128);
  EXPECT_EQ(std::memcmp(back.data(), row.data() + 32, 128), 0);
  const CUdeviceptr word = NewWord(0);
  CUDA_OK(cuMemcpyAtoD_v2, word, array_, 16, 8);
  float pair[2];
  CUDA_OK(cuMemcpyDtoH_v2, pair, word, 8);
  EXPECT_EQ(pair[1], 5.5f);
}

RULE_TEST(ArrayTest, BoxesGoThroughArrays,
          "a 3D copy into an array and out of it finds every element at its place",
          "CUDA Driver API 13.0, Memory Management, cuMemcpy3D (CU_MEMORYTYPE_ARRAY)") {
  ASSERT_EQ(Create(Shape(8, 4, 3)), CUDA_SUCCESS);
  std::vector<float> out(8 * 4 * 3);
  std::vector<float> back(4);
  std::iota(out.begin(), out.end(), 0.0f);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = out.data();
  copy.srcPitch = 32;
  copy.srcHeight = 4;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array_;
  copy.WidthInBytes = 32;
  copy.Height = 4;
  copy.Depth = 3;
  CUDA_OK(cuMemcpy3D_v2, &copy);
  CUDA_MEMCPY3D part{};
  part.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  part.srcArray = array_;
  part.srcXInBytes = 8;
  part.srcY = 1;
  part.srcZ = 2;
  part.dstMemoryType = CU_MEMORYTYPE_HOST;
  part.dstHost = back.data();
  part.dstPitch = 8;
  part.dstHeight = 2;
  part.WidthInBytes = 8;
  part.Height = 2;
  part.Depth = 1;
  CUDA_OK(cuMemcpy3D_v2, &part);
  EXPECT_EQ(back, (std::vector<float>{74, 75, 82, 83}));
}

RULE_TEST(ArrayTest, CopiesStayInsideTheArray,
          "a copy beyond an array's extents is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Memory Management, cuMemcpyHtoA (return values)") {
  ASSERT_EQ(Create(Shape(64, 4, 0)), CUDA_SUCCESS);
  std::vector<char> host(4096);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 512;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array_;
  copy.WidthInBytes = 260;
  copy.Height = 1;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2, &copy);
  copy.WidthInBytes = 256;
  copy.Height = 5;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2, &copy);
  copy.Height = 4;
  CUDA_OK(cuMemcpy2D_v2, &copy);
}

RULE_TEST(ArrayTest, CopiesBeginAtAnElement,
          "an X origin in an array must be divisible by the element's size",
          "CUDA Driver API 13.0, Memory Management, cuMemcpy2D (srcXInBytes, dstXInBytes)") {
  ASSERT_EQ(Create(Shape(64, 4, 0)), CUDA_SUCCESS);
  std::vector<char> host(4096);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 512;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array_;
  copy.dstXInBytes = 2;
  copy.WidthInBytes = 16;
  copy.Height = 1;
  CUDA_IS(ButOnGpu(CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS), cuMemcpy2D_v2, &copy);
}

RULE_TEST(ArrayTest, MipmapsHaveLevels,
          "level k of a mipmapped array has half the extents of level k - 1",
          "CUDA Driver API 13.0, Memory Management, cuMipmappedArrayGetLevel") {
  const CUDA_ARRAY3D_DESCRIPTOR shape = Shape(64, 16, 0);
  CUmipmappedArray mipmap;
  CUDA_OK(cuMipmappedArrayCreate, &mipmap, &shape, 7);
  for (unsigned level = 0; level < 7; ++level) {
    CUarray array;
    CUDA_OK(cuMipmappedArrayGetLevel, &array, mipmap, level);
    CUDA_ARRAY3D_DESCRIPTOR seen{};
    CUDA_OK(cuArray3DGetDescriptor_v2, &seen, array);
    EXPECT_EQ(seen.Width, size_t{64} >> level);
    EXPECT_EQ(seen.Height, std::max<size_t>(1, size_t{16} >> level));
  }
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
}

RULE_TEST(ArrayTest, MipmapLevelsAreClamped,
          "the number of levels is clamped to 1 .. 1 + log2 of the largest extent", kMipmap) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = Shape(32, 8, 0);
  CUmipmappedArray mipmap;
  CUarray level;
  CUDA_OK(cuMipmappedArrayCreate, &mipmap, &shape, 100);
  CUDA_OK(cuMipmappedArrayGetLevel, &level, mipmap, 5);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel, &level, mipmap, 6);
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
  CUDA_OK(cuMipmappedArrayCreate, &mipmap, &shape, 0);
  CUDA_OK(cuMipmappedArrayGetLevel, &level, mipmap, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel, &level, mipmap, 1);
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
}

RULE_TEST(ArrayTest, MipmapsCostAllTheirLevels,
          "a mipmapped array takes the memory of every level, and gives it back", kMipmap) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = Shape(2048, 2048, 0);
  CUmipmappedArray mipmap;
  const uint64_t before = FreeBytes();
  CUDA_OK(cuMipmappedArrayCreate, &mipmap, &shape, 12);
  EXPECT_LE(FreeBytes(), before - (16 + 4 + 1) * (uint64_t{1} << 20));
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(ArrayTest, LevelsHoldTheirOwnBytes, "levels do not overlap",
          "CUDA Driver API 13.0, Memory Management, cuMipmappedArrayGetLevel") {
  const CUDA_ARRAY3D_DESCRIPTOR shape = Shape(64, 0, 0);
  CUmipmappedArray mipmap;
  CUarray first;
  CUarray second;
  CUDA_OK(cuMipmappedArrayCreate, &mipmap, &shape, 2);
  CUDA_OK(cuMipmappedArrayGetLevel, &first, mipmap, 0);
  CUDA_OK(cuMipmappedArrayGetLevel, &second, mipmap, 1);
  std::vector<float> ones(64, 1.0f);
  std::vector<float> twos(32, 2.0f);
  CUDA_OK(cuMemcpyHtoA_v2, second, 0, twos.data(), 128);
  CUDA_OK(cuMemcpyHtoA_v2, first, 0, ones.data(), 256);
  CUDA_OK(cuMemcpyAtoH_v2, ones.data(), second, 0, 128);
  EXPECT_EQ(ones[0], 2.0f);
  EXPECT_EQ(ones[31], 2.0f);
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
}

}  // namespace
}  // namespace prorata::conformance
