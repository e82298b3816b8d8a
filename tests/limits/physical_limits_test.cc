// Physical memory that the program maps by itself, and what keeps it.

#include "limits.h"

namespace prorata::limits {
namespace {

class PhysicalLimits : public LimitTest {
 protected:
  void SetUp() override {
    LimitTest::SetUp();
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    size_t unit = 0;
    CUDA_OK(cuMemGetAllocationGranularity, &unit, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    bytes_ = (32 * kMib + unit - 1) / unit * unit;
  }
  CUmemGenericAllocationHandle Create() {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(CUDA(cuMemCreate)(&handle, bytes_, &prop_, 0), CUDA_SUCCESS);
    return handle;
  }
  CUdeviceptr Map(CUmemGenericAllocationHandle handle) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuMemAddressReserve)(&address, bytes_, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemMap)(address, bytes_, 0, handle, 0), CUDA_SUCCESS);
    return address;
  }
  void Unmap(CUdeviceptr address) {
    CUDA_OK(cuMemUnmap, address, bytes_);
    CUDA_OK(cuMemAddressFree, address, bytes_);
  }
  CUmemAllocationProp prop_{};
  uint64_t bytes_ = 0;
};

TEST_F(PhysicalLimits, MemCreateRefused) {
  LeaveRoom(bytes_ / 2);
  CUmemGenericAllocationHandle handle = 0;
  Refused([&] { return CUDA(cuMemCreate)(&handle, bytes_, &prop_, 0); });
}

TEST_F(PhysicalLimits, MemCreateCharged) {
  LeaveRoom(bytes_);
  const CUmemGenericAllocationHandle handle = Create();
  EXPECT_TRUE(Charged(bytes_));
  const CUdeviceptr first = Map(handle), second = Map(handle);
  EXPECT_TRUE(Charged(bytes_));
  Unmap(first);
  Unmap(second);
  EXPECT_TRUE(Charged(bytes_));
  CUDA_OK(cuMemRelease, handle);
  EXPECT_TRUE(Charged(0));
}

TEST_F(PhysicalLimits, MemReleaseMakesRoom) {
  LeaveRoom(bytes_);
  const CUmemGenericAllocationHandle handle = Create();
  CUmemGenericAllocationHandle other = 0;
  Refused([&] { return CUDA(cuMemCreate)(&other, bytes_, &prop_, 0); });
  CUDA_OK(cuMemRelease, handle);
  CUDA_OK(cuMemCreate, &other, bytes_, &prop_, 0);
  CUDA_OK(cuMemRelease, other);
}

TEST_F(PhysicalLimits, MemReleaseGivesBack) {
  const CUmemGenericAllocationHandle handle = Create();
  const CUdeviceptr address = Map(handle);
  CUDA_OK(cuMemRelease, handle);
  EXPECT_TRUE(Charged(bytes_)) << "its mapping holds it";
  CUmemGenericAllocationHandle again = 0;
  CUDA_OK(cuMemRetainAllocationHandle, &again, reinterpret_cast<void*>(address));
  Unmap(address);
  EXPECT_TRUE(Charged(bytes_)) << "the handle holds it";
  CUDA_OK(cuMemRelease, again);
  EXPECT_TRUE(Charged(0));
  EXPECT_NE(CUDA(cuMemRelease)(again), CUDA_SUCCESS);
  EXPECT_TRUE(Charged(0));
}

// The device has no sparse arrays on the simulated machine.
TEST_F(PhysicalLimits, MemMapArrayAsyncKeepsItsTiles) {
  SKIP_UNLESS(Has(CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED) && OnRealGpu(), "sparse arrays");
  const CUDA_ARRAY3D_DESCRIPTOR shape = {
      4096, 4096, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, CUDA_ARRAY3D_SPARSE};
  CUarray array = nullptr;
  CUDA_OK(cuArray3DCreate_v2, &array, &shape);
  EXPECT_TRUE(Charged(0)) << "no memory before it is mapped";
  CUDA_ARRAY_SPARSE_PROPERTIES tiles{};
  CUDA_OK(cuArrayGetSparseProperties, &tiles, array);
  CUmemGenericAllocationHandle handle = 0;
  prop_.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
  CUDA_OK(cuMemCreate, &handle, bytes_, &prop_, 0);
  CUarrayMapInfo info{};
  info.resourceType = CU_RESOURCE_TYPE_ARRAY;
  info.resource.array = array;
  info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
  info.subresource.sparseLevel.extentWidth = tiles.tileExtent.width;
  info.subresource.sparseLevel.extentHeight = tiles.tileExtent.height;
  info.subresource.sparseLevel.extentDepth = tiles.tileExtent.depth;
  info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  info.memHandle.memHandle = handle;
  info.deviceBitMask = 1;
  CUDA_OK(cuMemMapArrayAsync, &info, 1, nullptr);
  CUDA_OK(cuCtxSynchronize, );
  CUDA_OK(cuMemRelease, handle);
  EXPECT_TRUE(Charged(bytes_)) << "the array keeps it";
  CUDA_OK(cuArrayDestroy, array);
  EXPECT_TRUE(Charged(0));
}

}  // namespace
}  // namespace prorata::limits
