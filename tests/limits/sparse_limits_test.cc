// Sparse arrays, and those with deferred mapping: free of charge until memory is mapped behind
// them, which they then keep.

#include "limits.h"

namespace prorata::limits {
namespace {

class SparseLimits : public LimitTest {
 protected:
  void SetUp() override {
    LimitTest::SetUp();
    if (HasFatalFailure()) return;
    SKIP_UNLESS(Has(CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED) &&
                    Has(CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED),
                "sparse arrays");
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    prop_.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    size_t unit = 0;
    CUDA_OK(cuMemGetAllocationGranularity, &unit, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    bytes_ = (32 * kMib + unit - 1) / unit * unit;
  }

  // 64 MiB, had it memory.
  static CUarray Create(unsigned flags = CUDA_ARRAY3D_SPARSE) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = {4096, 4096, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, flags};
    CUarray array = nullptr;
    EXPECT_EQ(CUDA(cuArray3DCreate_v2)(&array, &shape), CUDA_SUCCESS);
    return array;
  }
  static CUmipmappedArray CreateLevels() {
    const CUDA_ARRAY3D_DESCRIPTOR shape = {
        4096, 4096, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, CUDA_ARRAY3D_SPARSE};
    CUmipmappedArray mipmap = nullptr;
    EXPECT_EQ(CUDA(cuMipmappedArrayCreate)(&mipmap, &shape, 13), CUDA_SUCCESS);
    return mipmap;
  }
  CUmemGenericAllocationHandle Pool() const {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(CUDA(cuMemCreate)(&handle, bytes_, &prop_, 0), CUDA_SUCCESS);
    return handle;
  }
  static void Fill(CUarrayMapInfo* info, const CUDA_ARRAY_SPARSE_PROPERTIES& tiles,
                   CUmemGenericAllocationHandle memory) {
    info->subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    info->subresource.sparseLevel.extentWidth = tiles.tileExtent.width;
    info->subresource.sparseLevel.extentHeight = tiles.tileExtent.height;
    info->subresource.sparseLevel.extentDepth = tiles.tileExtent.depth;
    info->memOperationType = memory ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
    info->memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    info->memHandle.memHandle = memory;
    info->deviceBitMask = 1;
  }
  // Maps the array's first tile, or unmaps it (no memory), and waits for it.
  static void Map(CUarray array, CUmemGenericAllocationHandle memory) {
    CUDA_ARRAY_SPARSE_PROPERTIES tiles{};
    CUDA_OK(cuArrayGetSparseProperties, &tiles, array);
    CUarrayMapInfo info{};
    info.resourceType = CU_RESOURCE_TYPE_ARRAY;
    info.resource.array = array;
    Fill(&info, tiles, memory);
    CUDA_OK(cuMemMapArrayAsync, &info, 1, nullptr);
    CUDA_OK(cuCtxSynchronize, );
  }
  static void Map(CUmipmappedArray mipmap, CUmemGenericAllocationHandle memory) {
    CUDA_ARRAY_SPARSE_PROPERTIES tiles{};
    CUDA_OK(cuMipmappedArrayGetSparseProperties, &tiles, mipmap);
    CUarrayMapInfo info{};
    info.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    info.resource.mipmap = mipmap;
    Fill(&info, tiles, memory);
    CUDA_OK(cuMemMapArrayAsync_ptsz, &info, 1, nullptr);
    CUDA_OK(cuCtxSynchronize, );
  }

  CUmemAllocationProp prop_{};
  uint64_t bytes_ = 0;
};

TEST_F(SparseLimits, ArraysFitAFullShare) {
  LeaveRoom(0);
  CUarray sparse = Create();
  CUarray deferred = Create(CUDA_ARRAY3D_DEFERRED_MAPPING);
  CUmipmappedArray mipmap = CreateLevels();
  EXPECT_TRUE(Charged(0)) << "no memory before it is mapped";
  CUDA_OK(cuArrayDestroy, sparse);
  CUDA_OK(cuArrayDestroy, deferred);
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
}

TEST_F(SparseLimits, MemMapArrayAsyncKeepsWhatIsCharged) {
  LeaveRoom(bytes_);
  CUarray array = Create();
  CUmemGenericAllocationHandle handle = Pool(), other = 0;
  Map(array, handle);
  CUDA_OK(cuMemRelease, handle);
  EXPECT_TRUE(Charged(bytes_)) << "the array keeps it";
  Refused([&] { return CUDA(cuMemCreate)(&other, bytes_, &prop_, 0); });
  CUDA_OK(cuArrayDestroy, array);
  EXPECT_TRUE(Charged(0));
  // The same of a mipmapped array.
  CUmipmappedArray mipmap = CreateLevels();
  handle = Pool();
  Map(mipmap, handle);
  CUDA_OK(cuMemRelease, handle);
  EXPECT_TRUE(Charged(bytes_)) << "the mipmapped array keeps it";
  Refused([&] { return CUDA(cuMemCreate)(&other, bytes_, &prop_, 0); });
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
  EXPECT_TRUE(Charged(0));
}

TEST_F(SparseLimits, MemMapArrayAsyncFitsAFullShare) {
  LeaveRoom(bytes_);
  const CUmemGenericAllocationHandle handle = Pool();
  CUarray first = Create(), second = Create();
  for (int i = 0; i < 3; ++i) {  // the pool is paid for, however often it is mapped
    Map(first, handle);
    Map(second, handle);
    EXPECT_TRUE(Charged(bytes_));
    Map(first, 0);
    Map(second, 0);
  }
  CUDA_OK(cuArrayDestroy, first);
  EXPECT_TRUE(Charged(bytes_)) << "the handle keeps it";
  CUDA_OK(cuMemRelease, handle);
  CUDA_OK(cuArrayDestroy, second);
  EXPECT_TRUE(Charged(0));
}

TEST_F(SparseLimits, ADeferredArrayKeepsItsMemory) {
  CUarray array = Create(CUDA_ARRAY3D_DEFERRED_MAPPING);
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  CUDA_OK(cuArrayGetMemoryRequirements, &needs, array, device_);
  bytes_ = (needs.size + bytes_ - 1) / bytes_ * bytes_;
  LeaveRoom(bytes_);
  const CUmemGenericAllocationHandle handle = Pool();
  CUarrayMapInfo info{};
  info.resourceType = CU_RESOURCE_TYPE_ARRAY;
  info.resource.array = array;
  info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  info.memHandle.memHandle = handle;
  info.deviceBitMask = 1;
  CUDA_OK(cuMemMapArrayAsync, &info, 1, nullptr);
  CUDA_OK(cuCtxSynchronize, );
  CUDA_OK(cuMemRelease, handle);
  EXPECT_TRUE(Charged(bytes_));
  CUmemGenericAllocationHandle other = 0;
  Refused([&] { return CUDA(cuMemCreate)(&other, bytes_, &prop_, 0); });
  CUDA_OK(cuArrayDestroy, array);
  EXPECT_TRUE(Charged(0));
}

TEST_F(SparseLimits, AnArrayEndsWithItsContext) {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, device_);
  CUarray array = Create();
  CUmipmappedArray mipmap = CreateLevels();
  const CUmemGenericAllocationHandle handle = Pool();
  Map(array, handle);
  Map(mipmap, handle);
  CUDA_OK(cuMemRelease, handle);
  const uint64_t before = Free();
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  EXPECT_TRUE(Charged(0)) << "of " << Free() - before << " bytes, " << bytes_
                          << " were the array's";
}

}  // namespace
}  // namespace prorata::limits
