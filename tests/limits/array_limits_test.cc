// Arrays and mipmapped arrays: bytes of all elements, layers, faces and levels, in whole slabs.

#include "limits.h"

namespace prorata::limits {
namespace {

uint64_t Slabs(uint64_t bytes) { return (bytes + kSlab - 1) / kSlab * kSlab; }

class ArrayLimits : public LimitTest {
 protected:
  // Makes it where just its charge is left, and finds it charged, and given back.
  void Charge(const CUDA_ARRAY3D_DESCRIPTOR& shape, uint64_t bytes) {
    LeaveRoom(Slabs(bytes));
    CUarray array = nullptr;
    ASSERT_EQ(CUDA(cuArray3DCreate_v2)(&array, &shape), CUDA_SUCCESS)
        << shape.Width << " x " << shape.Height << " x " << shape.Depth << ", format "
        << shape.Format;
    EXPECT_TRUE(Charged(Slabs(bytes))) << bytes << " bytes, format " << shape.Format;
    CUDA_OK(cuArrayDestroy, array);
    EXPECT_TRUE(Charged(0));
    GiveRoomBack();
  }
  void ChargeLevels(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels, uint64_t bytes) {
    CUmipmappedArray mipmap = nullptr;
    ASSERT_EQ(CUDA(cuMipmappedArrayCreate)(&mipmap, &shape, levels), CUDA_SUCCESS);
    EXPECT_TRUE(Charged(Slabs(bytes))) << bytes;
    CUDA_OK(cuMipmappedArrayDestroy, mipmap);
    EXPECT_TRUE(Charged(0));
  }
};

constexpr CUDA_ARRAY3D_DESCRIPTOR kWide = {4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, 0};  // 256 MiB

TEST_F(ArrayLimits, ArrayCreateRefused) {
  LeaveRoom(8 * kMib);
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR flat = {4096, 4096, CU_AD_FORMAT_FLOAT, 1};
  Refused([&] { return CUDA(cuArrayCreate_v2)(&array, &flat); });
  const CUDA_ARRAY_DESCRIPTOR_v1 first = {4096, 4096, CU_AD_FORMAT_FLOAT, 1};
  Refused([&] { return CUDA(cuArrayCreate)(&array, &first); });
}

TEST_F(ArrayLimits, ArrayCreateCharged) {
  LeaveRoom(64 * kMib);
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR flat = {4096, 4096, CU_AD_FORMAT_FLOAT, 1};
  CUDA_OK(cuArrayCreate_v2, &array, &flat);
  EXPECT_TRUE(Charged(64 * kMib));
  CUDA_OK(cuArrayDestroy, array);
  EXPECT_TRUE(Charged(0));
  const CUDA_ARRAY_DESCRIPTOR_v1 line = {4096, 0, CU_AD_FORMAT_HALF, 2};
  if (OnRealGpu()) {  // so an H100's driver (580.159.04) answers calls of before CUDA 3.2
    EXPECT_EQ(CUDA(cuArrayCreate)(&array, &line), CUDA_ERROR_INVALID_CONTEXT);
    return;
  }
  CUDA_OK(cuArrayCreate, &array, &line);
  EXPECT_TRUE(Charged(kSlab));
  CUDA_OK(cuArrayDestroy, array);
  EXPECT_TRUE(Charged(0));
}

TEST_F(ArrayLimits, Array3DCreateRefused) {
  LeaveRoom(64 * kMib);
  CUarray array = nullptr;
  Refused([&] { return CUDA(cuArray3DCreate_v2)(&array, &kWide); });
  const CUDA_ARRAY3D_DESCRIPTOR_v1 first = {512, 512, 512, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
  Refused([&] { return CUDA(cuArray3DCreate)(&array, &first); });
}

TEST_F(ArrayLimits, Array3DCreateCharged) {
  Charge(kWide, 256 * kMib);
  Charge({1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0}, 4 * kMib);
  Charge({256, 256, 256, CU_AD_FORMAT_HALF, 2, 0}, 64 * kMib);
  Charge({1024, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 1024);
  // Layers of lines, layers, faces.
  Charge({4096, 0, 64, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_LAYERED}, 4 * kMib);
  Charge({1024, 1024, 7, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED}, 28 * kMib);
  Charge({1024, 1024, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP}, 24 * kMib);
}

TEST_F(ArrayLimits, Array3DCreateEveryFormat) {
  struct Case {
    CUarray_format format;
    unsigned channels;
    uint64_t bits;
  };
  const Case cases[] = {
      {CU_AD_FORMAT_UNSIGNED_INT8, 1, 8},   {CU_AD_FORMAT_SIGNED_INT8, 4, 32},
      {CU_AD_FORMAT_UNSIGNED_INT16, 2, 32}, {CU_AD_FORMAT_SIGNED_INT16, 1, 16},
      {CU_AD_FORMAT_UNSIGNED_INT32, 1, 32}, {CU_AD_FORMAT_SIGNED_INT32, 4, 128},
      {CU_AD_FORMAT_HALF, 4, 64},           {CU_AD_FORMAT_FLOAT, 2, 64},
      {CU_AD_FORMAT_UNORM_INT8X4, 4, 32},   {CU_AD_FORMAT_SNORM_INT16X4, 4, 64},
      {CU_AD_FORMAT_BC1_UNORM, 4, 4},       {CU_AD_FORMAT_BC7_UNORM, 4, 8},
      {CU_AD_FORMAT_NV12, 3, 12},
  };
  int made = 0;
  for (const Case& c : cases) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = {2048, 2048, 0, c.format, c.channels, 0};
    CUarray array = nullptr;
    // Which formats there are is the device's to say; one that it refuses costs nothing.
    if (CUDA(cuArray3DCreate_v2)(&array, &shape) != CUDA_SUCCESS) {
      EXPECT_TRUE(Charged(0)) << "format " << c.format;
      continue;
    }
    ++made;
    EXPECT_TRUE(Charged(Slabs(uint64_t{2048} * 2048 * c.bits / 8))) << "format " << c.format;
    CUDA_OK(cuArrayDestroy, array);
    EXPECT_TRUE(Charged(0));
  }
  EXPECT_GE(made, 8);
}

TEST_F(ArrayLimits, MipmappedArrayCreateRefused) {
  LeaveRoom(256 * kMib);  // the first level alone would fit
  CUmipmappedArray mipmap = nullptr;
  Refused([&] { return CUDA(cuMipmappedArrayCreate)(&mipmap, &kWide, 13); });
}

TEST_F(ArrayLimits, MipmappedArrayCreateCharged) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0};
  ChargeLevels(shape, 1, 16 * kMib);
  ChargeLevels(shape, 3, 21 * kMib);
  ChargeLevels({1024, 1024, 4, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED}, 2, 20 * kMib);
  ChargeLevels({128, 128, 128, CU_AD_FORMAT_FLOAT, 1, 0}, 2, 9 * kMib);
}

TEST_F(ArrayLimits, ArrayDestroyMakesRoom) {
  LeaveRoom(64 * kMib);
  const CUDA_ARRAY3D_DESCRIPTOR shape = {4096, 4096, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUarray array = nullptr, second = nullptr;
  CUDA_OK(cuArray3DCreate_v2, &array, &shape);
  Refused([&] { return CUDA(cuArray3DCreate_v2)(&second, &shape); });
  CUDA_OK(cuArrayDestroy, array);
  CUDA_OK(cuArray3DCreate_v2, &second, &shape);
  CUDA_OK(cuArrayDestroy, second);
}

TEST_F(ArrayLimits, ArrayDestroyGivesBack) {
  CUarray array = nullptr;
  CUDA_OK(cuArray3DCreate_v2, &array, &kWide);
  EXPECT_TRUE(Charged(256 * kMib));
  CUDA_OK(cuArrayDestroy, array);
  EXPECT_TRUE(Charged(0));
}

TEST_F(ArrayLimits, MipmappedArrayDestroyMakesRoom) {
  LeaveRoom(24 * kMib);
  const CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0};
  CUmipmappedArray mipmap = nullptr, second = nullptr;
  CUDA_OK(cuMipmappedArrayCreate, &mipmap, &shape, 3);
  Refused([&] { return CUDA(cuMipmappedArrayCreate)(&second, &shape, 3); });
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
  CUDA_OK(cuMipmappedArrayCreate, &second, &shape, 3);
  CUDA_OK(cuMipmappedArrayDestroy, second);
}

TEST_F(ArrayLimits, MipmappedArrayDestroyGivesBack) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0};
  CUmipmappedArray mipmap = nullptr;
  CUDA_OK(cuMipmappedArrayCreate, &mipmap, &shape, 11);
  CUarray level = nullptr;
  CUDA_OK(cuMipmappedArrayGetLevel, &level, mipmap, 2);
  EXPECT_TRUE(Charged(Slabs(16 * kMib + 4 * kMib + kMib + kMib / 2)));
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
  EXPECT_TRUE(Charged(0));
}

}  // namespace
}  // namespace prorata::limits
