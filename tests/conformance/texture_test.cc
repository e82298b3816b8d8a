// Texture and surface objects, and tensor maps: what can be seen of them from the host.

#include <cstring>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kTexture[] = "CUDA Driver API, Texture Object Management, cuTexObjectCreate";
constexpr char kSurface[] = "CUDA Driver API, Surface Object Management, cuSurfObjectCreate";
constexpr char kTensor[] = "CUDA Driver API, Tensor Map Object Management, cuTensorMapEncodeTiled";

class TextureTest : public DriverTest {
 protected:
  CUDA_RESOURCE_DESC Linear(size_t bytes) {
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    EXPECT_EQ(CUDA(cuMemAlloc_v2)(&resource.res.linear.devPtr, bytes), CUDA_SUCCESS);
    resource.res.linear.format = CU_AD_FORMAT_FLOAT;
    resource.res.linear.numChannels = 1;
    resource.res.linear.sizeInBytes = bytes;
    return resource;
  }
  static CUDA_RESOURCE_DESC ArrayOf(unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor{};
    descriptor.Width = descriptor.Height = 16;
    descriptor.Format = CU_AD_FORMAT_FLOAT;
    descriptor.NumChannels = 1;
    descriptor.Flags = flags;
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    EXPECT_EQ(CUDA(cuArray3DCreate_v2)(&resource.res.array.hArray, &descriptor), CUDA_SUCCESS);
    return resource;
  }
};

RULE_TEST(TextureTest, ATextureObjectTellsItsDescriptions,
          "a texture object gives back the descriptions it was made of", kTexture) {
  const CUDA_RESOURCE_DESC resource = Linear(4096);
  CUDA_TEXTURE_DESC texture{};
  texture.filterMode = CU_TR_FILTER_MODE_POINT;
  texture.addressMode[0] = CU_TR_ADDRESS_MODE_CLAMP;
  CUtexObject object = 0;
  CUDA_OK(cuTexObjectCreate, &object, &resource, &texture, nullptr);
  CUDA_RESOURCE_DESC resource_back{};
  CUDA_TEXTURE_DESC texture_back{};
  CUDA_OK(cuTexObjectGetResourceDesc, &resource_back, object);
  CUDA_OK(cuTexObjectGetTextureDesc, &texture_back, object);
  EXPECT_EQ(resource_back.res.linear.devPtr, resource.res.linear.devPtr);
  EXPECT_EQ(resource_back.res.linear.sizeInBytes, 4096u);
  EXPECT_EQ(texture_back.addressMode[0], CU_TR_ADDRESS_MODE_CLAMP);
  CUDA_OK(cuTexObjectDestroy, object);
}

RULE_TEST(TextureTest, LinearMemoryMustBeAligned,
          "linear memory of a texture must lie at a multiple of the texture alignment", kTexture) {
  CUDA_RESOURCE_DESC resource = Linear(4096);
  resource.res.linear.devPtr += 4;
  resource.res.linear.sizeInBytes = 64;
  const CUDA_TEXTURE_DESC texture{};
  CUtexObject object = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate, &object, &resource, &texture, nullptr);
}

RULE_TEST(TextureTest, ASurfaceIsAnArrayMadeForIt,
          "a surface object is of an array that was made with CUDA_ARRAY3D_SURFACE_LDST",
          kSurface) {
  const CUDA_RESOURCE_DESC good = ArrayOf(CUDA_ARRAY3D_SURFACE_LDST);
  const CUDA_RESOURCE_DESC linear = Linear(4096);
  CUsurfObject object = 0;
  CUDA_OK(cuSurfObjectCreate, &object, &good);
  CUDA_RESOURCE_DESC back{};
  CUDA_OK(cuSurfObjectGetResourceDesc, &back, object);
  EXPECT_EQ(back.res.array.hArray, good.res.array.hArray);
  CUDA_OK(cuSurfObjectDestroy, object);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate, &object, &linear);
}

class TensorMapTest : public DriverTest {
 protected:
  CUresult Encode(void* address, cuuint32_t box) {
    const cuuint64_t dims[] = {64, 32};
    const cuuint64_t strides[] = {64 * 4};
    const cuuint32_t boxes[] = {box, 8};
    const cuuint32_t elements[] = {1, 1};
    return CUDA(cuTensorMapEncodeTiled)(&map_, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, address, dims,
                                        strides, boxes, elements, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                        CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }

  CUtensorMap map_{};
};

RULE_TEST(TensorMapTest, AMapIsMadeOfValidArguments,
          "a tensor map describes a tensor at an address aligned to 16 bytes, in boxes of at most "
          "256 elements a side",
          kTensor) {
  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2, &memory, 64 * 32 * 4);
  auto* address = reinterpret_cast<char*>(memory);
  ASSERT_EQ(Encode(address, 16), CUDA_SUCCESS);
  EXPECT_EQ(Encode(address + 4, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Encode(address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Encode(address, 257), CUDA_ERROR_INVALID_VALUE);
}

RULE_TEST(TensorMapTest, AnotherAddressMakesAnotherMap,
          "the address of a tensor map can be replaced, and equal arguments make equal maps",
          "CUDA Driver API, Tensor Map Object Management, cuTensorMapReplaceAddress") {
  CUdeviceptr memory = 0;
  CUDA_OK(cuMemAlloc_v2, &memory, 2 * 64 * 32 * 4);
  auto* address = reinterpret_cast<char*>(memory);
  ASSERT_EQ(Encode(address, 16), CUDA_SUCCESS);
  const CUtensorMap first = map_;
  CUDA_OK(cuTensorMapReplaceAddress, &map_, address + 64 * 32 * 4);
  EXPECT_NE(std::memcmp(&first, &map_, sizeof(first)), 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuTensorMapReplaceAddress, &map_, address + 1);
  CUDA_OK(cuTensorMapReplaceAddress, &map_, address);
  EXPECT_EQ(std::memcmp(&first, &map_, sizeof(first)), 0);
}

}  // namespace
}  // namespace prorata::conformance
