// Sparse arrays, and arrays that are mapped by the program at once (deferred mapping).

#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kCreateSparse[] = "CUDA Driver API 13.0, Memory Management, cuArray3DCreate";
constexpr char kProperties[] =
    "CUDA Driver API 13.0, Memory Management, cuArrayGetSparseProperties";
constexpr char kLevels[] =
    "CUDA Driver API 13.0, Memory Management, cuMipmappedArrayGetSparseProperties";
constexpr char kRequirements[] =
    "CUDA Driver API 13.0, Memory Management, cuArrayGetMemoryRequirements";
constexpr char kMapTiles[] = "CUDA Driver API 13.0, Virtual Memory Management, cuMemMapArrayAsync";

class SparseTest : public DriverTest {
 protected:
  static constexpr size_t kTile = size_t{64} << 10;

  void SetUp() override {
    DriverTest::SetUp();
    if (HasFatalFailure()) return;
    for (const auto attribute : {CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED,
                                 CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED}) {
      int supported = 0;
      CUDA_OK(cuDeviceGetAttribute, &supported, attribute, 0);
      if (supported == 0) GTEST_SKIP() << "this device has no sparse arrays";
    }
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    prop_.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    CUDA_OK(cuMemGetAllocationGranularity, &unit_, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  }

  static CUDA_ARRAY3D_DESCRIPTOR Shape(size_t width, size_t height, size_t depth, unsigned flags) {
    return {width, height, depth, CU_AD_FORMAT_UNSIGNED_INT32, 1, flags};
  }
  CUarray Create(size_t width, size_t height, size_t depth = 0,
                 unsigned flags = CUDA_ARRAY3D_SPARSE) {
    CUarray array = nullptr;
    const CUDA_ARRAY3D_DESCRIPTOR shape = Shape(width, height, depth, flags);
    EXPECT_EQ(CUDA(cuArray3DCreate_v2)(&array, &shape), CUDA_SUCCESS);
    return array;
  }
  static CUmipmappedArray Levels(size_t width, size_t height, unsigned levels, size_t layers = 0) {
    CUmipmappedArray mipmap = nullptr;
    const CUDA_ARRAY3D_DESCRIPTOR shape =
        Shape(width, height, layers, CUDA_ARRAY3D_SPARSE | (layers ? CUDA_ARRAY3D_LAYERED : 0));
    EXPECT_EQ(CUDA(cuMipmappedArrayCreate)(&mipmap, &shape, levels), CUDA_SUCCESS);
    return mipmap;
  }
  CUmemGenericAllocationHandle Pool(size_t bytes) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(CUDA(cuMemCreate)(&handle, (bytes + unit_ - 1) / unit_ * unit_, &prop_, 0),
              CUDA_SUCCESS);
    return handle;
  }
  static CUDA_ARRAY_SPARSE_PROPERTIES Properties(CUarray array) {
    CUDA_ARRAY_SPARSE_PROPERTIES out{};
    EXPECT_EQ(CUDA(cuArrayGetSparseProperties)(&out, array), CUDA_SUCCESS);
    return out;
  }
  // A map of `columns` tiles of the first row, from the first on; an unmap when there is no memory.
  static CUarrayMapInfo Tiles(CUarray array, CUmemGenericAllocationHandle memory,
                              unsigned columns = 1) {
    const CUDA_ARRAY_SPARSE_PROPERTIES tiles = Properties(array);
    CUarrayMapInfo info{};
    info.resourceType = CU_RESOURCE_TYPE_ARRAY;
    info.resource.array = array;
    info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    info.subresource.sparseLevel.extentWidth = columns * tiles.tileExtent.width;
    info.subresource.sparseLevel.extentHeight = tiles.tileExtent.height;
    info.subresource.sparseLevel.extentDepth = tiles.tileExtent.depth;
    info.memOperationType = memory ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
    info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    info.memHandle.memHandle = memory;
    info.deviceBitMask = 1;
    return info;
  }
  static CUarrayMapInfo Tail(CUmipmappedArray mipmap, CUmemGenericAllocationHandle memory,
                             uint64_t bytes, unsigned layer = 0) {
    CUarrayMapInfo info{};
    info.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    info.resource.mipmap = mipmap;
    info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    info.subresource.miptail.layer = layer;
    info.subresource.miptail.size = bytes;
    info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    info.memHandle.memHandle = memory;
    info.deviceBitMask = 1;
    return info;
  }
  static CUresult Map(CUarrayMapInfo info, CUstream stream = nullptr) {
    return CUDA(cuMemMapArrayAsync)(&info, 1, stream);
  }
  static void Refused(const CUarrayMapInfo& info) {
    EXPECT_EQ(Map(info), CUDA_ERROR_INVALID_VALUE);
  }
  // The first words of row `y` from column `x` on.
  static void Write(CUarray array, size_t x, size_t y, const std::vector<uint32_t>& words) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = words.data();
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.dstXInBytes = 4 * x;
    copy.dstY = y;
    copy.WidthInBytes = 4 * words.size();
    copy.Height = 1;
    CUDA_OK(cuMemcpy2D_v2, &copy);
  }
  static std::vector<uint32_t> Read(CUarray array, size_t x, size_t y, size_t count) {
    std::vector<uint32_t> words(count);
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = array;
    copy.srcXInBytes = 4 * x;
    copy.srcY = y;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = words.data();
    copy.WidthInBytes = 4 * count;
    copy.Height = 1;
    EXPECT_EQ(CUDA(cuMemcpy2D_v2)(&copy), CUDA_SUCCESS);
    return words;
  }

  CUmemAllocationProp prop_{};
  size_t unit_ = 0;
};

RULE_TEST(SparseTest, ItHasNoMemory,
          "a sparse array, and one with deferred mapping, is made without memory behind it",
          kCreateSparse) {
  const uint64_t before = FreeBytes();
  CUarray sparse = Create(8192, 8192);
  CUarray deferred = Create(8192, 8192, 0, CUDA_ARRAY3D_DEFERRED_MAPPING);
  CUmipmappedArray mipmap = Levels(4096, 4096, 4);
  EXPECT_EQ(FreeBytes(), before);
  CUDA_OK(cuArrayDestroy, sparse);
  CUDA_OK(cuArrayDestroy, deferred);
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(
    SparseTest, OnlySparseArraysHaveTiles,
    "cuArrayGetSparseProperties tells the tile of an array made with SPARSE, and of no other; "
    "the level of a mipmapped array is none",
    kProperties) {
  const CUDA_ARRAY_SPARSE_PROPERTIES tiles = Properties(Create(4096, 4096));
  EXPECT_EQ(size_t{4} * tiles.tileExtent.width * tiles.tileExtent.height * tiles.tileExtent.depth,
            kTile);
  EXPECT_EQ(tiles.miptailFirstLevel, 0u);
  EXPECT_EQ(tiles.miptailSize, 0u);
  EXPECT_EQ(tiles.flags, 0u);
  CUDA_ARRAY_SPARSE_PROPERTIES none{};
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties, &none, Create(64, 64, 0, 0));
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties, &none,
          Create(64, 64, 0, CUDA_ARRAY3D_DEFERRED_MAPPING));
  CUarray level = nullptr;
  CUDA_OK(cuMipmappedArrayGetLevel, &level, Levels(4096, 4096, 2), 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties, &none, level);
}

RULE_TEST(SparseTest, ASmallArrayIsAMipTail,
          "of an array that is a mip tail as a whole (SINGLE_MIPTAIL) miptailSize is its size",
          kProperties) {
  const CUDA_ARRAY_SPARSE_PROPERTIES tiles = Properties(Create(16, 16));
  if (tiles.flags == 0) {
    EXPECT_EQ(tiles.miptailSize, 0u);
  } else {
    EXPECT_EQ(tiles.flags, unsigned{CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL});
    EXPECT_GE(tiles.miptailSize, 16u * 16 * 4);
  }
}

RULE_TEST(SparseTest, SmallLevelsAreTheMipTail,
          "the mip tail of a mipmapped array begins with the first level smaller than a tile",
          kLevels) {
  CUmipmappedArray mipmap = Levels(1024, 1024, 11);
  CUDA_ARRAY_SPARSE_PROPERTIES tiles{};
  CUDA_OK(cuMipmappedArrayGetSparseProperties, &tiles, mipmap);
  const size_t first = tiles.miptailFirstLevel;
  ASSERT_GT(first, 0u);
  EXPECT_LT(1024u >> first, std::max(tiles.tileExtent.width, tiles.tileExtent.height));
  EXPECT_GE(1024u >> (first - 1), std::max(tiles.tileExtent.width, tiles.tileExtent.height));
  EXPECT_GT(tiles.miptailSize, 0u);
  EXPECT_EQ(tiles.miptailSize % kTile, 0u);
  CUmipmappedArray plain = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR shape = Shape(64, 64, 0, 0);
  CUDA_OK(cuMipmappedArrayCreate, &plain, &shape, 2);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetSparseProperties, &tiles, plain);
}

RULE_TEST(SparseTest, OnlyDeferredArraysHaveRequirements,
          "the memory requirements of an array are told if it was made with DEFERRED_MAPPING",
          kRequirements) {
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  CUDA_OK(cuArrayGetMemoryRequirements, &needs, Create(1024, 512, 0, CUDA_ARRAY3D_DEFERRED_MAPPING),
          0);
  EXPECT_GE(needs.size, 1024u * 512 * 4);
  EXPECT_GT(needs.alignment, 0u);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuArrayGetMemoryRequirements, &needs, Create(64, 64, 0, 0), 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuArrayGetMemoryRequirements, &needs, Create(4096, 4096), 0);
  const CUDA_ARRAY3D_DESCRIPTOR shape = Shape(256, 256, 0, CUDA_ARRAY3D_DEFERRED_MAPPING);
  CUmipmappedArray mipmap = nullptr;
  CUDA_OK(cuMipmappedArrayCreate, &mipmap, &shape, 3);
  CUDA_OK(cuMipmappedArrayGetMemoryRequirements, &needs, mipmap, 0);
  EXPECT_GE(needs.size, (256u * 256 + 128 * 128 + 64 * 64) * 4);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetMemoryRequirements, &needs,
          Levels(256, 256, 2), 0);
}

RULE_TEST(SparseTest, MappedTilesAreWrittenAndRead,
          "copies reach the memory that is mapped behind the tiles of an array", kMapTiles) {
  CUarray array = Create(1024, 1024);
  const unsigned width = Properties(array).tileExtent.width;
  ASSERT_EQ(Map(Tiles(array, Pool(2 * kTile), 2)), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  Write(array, width - 2, 3, {1, 2, 3, 4});  // over the edge from one to the other
  Write(array, 0, 3, {5});
  EXPECT_EQ(Read(array, width - 2, 3, 4), (std::vector<uint32_t>{1, 2, 3, 4}));
  EXPECT_EQ(Read(array, 0, 3, 1), (std::vector<uint32_t>{5}));
}

RULE_TEST(SparseTest, TheSameMemoryIsTheSameBytes,
          "two tiles that are mapped to one place of the memory show the same bytes", kMapTiles) {
  CUarray array = Create(1024, 1024);
  CUarray other = Create(1024, 1024);
  const CUmemGenericAllocationHandle pool = Pool(2 * kTile);
  CUarrayMapInfo second = Tiles(other, pool);
  second.offset = kTile;
  ASSERT_EQ(Map(Tiles(array, pool, 2)), CUDA_SUCCESS);
  ASSERT_EQ(Map(second), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  const unsigned width = Properties(array).tileExtent.width;
  Write(array, width + 7, 2, {42});
  EXPECT_EQ(Read(other, 7, 2, 1), (std::vector<uint32_t>{42}));
}

RULE_TEST(SparseTest, LayersSlicesAndTailsAreMapped,
          "layers, slices of tiles and mip tails are mapped each by itself", kMapTiles) {
  CUarray layered = Create(512, 512, 3, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_LAYERED);
  CUarray deep = Create(256, 256, 64);
  CUmipmappedArray mipmap = Levels(512, 512, 10, 2);
  const CUmemGenericAllocationHandle pool = Pool(32 * kTile);
  CUarrayMapInfo layer = Tiles(layered, pool);
  layer.subresource.sparseLevel.layer = 2;
  EXPECT_EQ(Map(layer), CUDA_SUCCESS);
  CUarrayMapInfo slice = Tiles(deep, pool);
  slice.subresource.sparseLevel.offsetZ = Properties(deep).tileExtent.depth;
  EXPECT_EQ(Map(slice), CUDA_SUCCESS);
  CUDA_ARRAY_SPARSE_PROPERTIES tiles{};
  CUDA_OK(cuMipmappedArrayGetSparseProperties, &tiles, mipmap);
  EXPECT_EQ(Map(Tail(mipmap, pool, tiles.miptailSize)), CUDA_SUCCESS);
  const bool single = tiles.flags & CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL;
  EXPECT_EQ(Map(Tail(mipmap, pool, tiles.miptailSize, 1)),
            single ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
  Refused(Tail(mipmap, pool, tiles.miptailSize, 2));
  Refused(Tail(mipmap, pool, tiles.miptailSize + kTile));
  Refused(Tail(mipmap, pool, kTile / 2));
  CUDA_OK(cuCtxSynchronize);
  CUarray last = nullptr;
  CUDA_OK(cuMipmappedArrayGetLevel, &last, mipmap, 9);
  Write(last, 0, 0, {77});
  EXPECT_EQ(Read(last, 0, 0, 1), (std::vector<uint32_t>{77}));
}

RULE_TEST(SparseTest, ADeferredArrayIsMappedAsAWhole,
          "of an array with deferred mapping all is mapped at once, whatever the subresource says",
          kMapTiles) {
  CUarray array = Create(1024, 512, 0, CUDA_ARRAY3D_DEFERRED_MAPPING);
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  CUDA_OK(cuArrayGetMemoryRequirements, &needs, array, 0);
  CUarrayMapInfo info{};
  info.resourceType = CU_RESOURCE_TYPE_ARRAY;
  info.resource.array = array;
  info.subresource.sparseLevel.level = 99;
  info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  info.memHandle.memHandle = Pool(needs.size);
  info.deviceBitMask = 1;
  ASSERT_EQ(Map(info), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  Write(array, 1022, 511, {8, 9});
  Write(array, 0, 0, {1});
  EXPECT_EQ(Read(array, 1022, 511, 2), (std::vector<uint32_t>{8, 9}));
  EXPECT_EQ(Read(array, 0, 0, 1), (std::vector<uint32_t>{1}));
}

RULE_TEST(SparseTest, RegionsAreWholeTiles,
          "offsets and extents of a map are whole tiles inside the array", kMapTiles) {
  CUarray array = Create(1024, 1024);
  const CUmemGenericAllocationHandle pool = Pool(2 * kTile);
  const CUarrayMapInfo good = Tiles(array, pool);
  CUarrayMapInfo info = good;
  info.subresource.sparseLevel.offsetX = 1;
  Refused(info);
  info = good;
  info.subresource.sparseLevel.extentHeight /= 2;
  Refused(info);
  info = good;
  info.subresource.sparseLevel.offsetX = 1024;
  Refused(info);
  info = good;
  info.subresource.sparseLevel.extentWidth = 0;
  Refused(info);
  info = good;
  info.subresource.sparseLevel.layer = 1;
  Refused(info);
  info = good;
  info.subresource.sparseLevel.level = 1;
  Refused(info);
  EXPECT_EQ(Map(good), CUDA_SUCCESS);
}

RULE_TEST(SparseTest, MemoryIsATilePoolOfTheDevice,
          "what is mapped is a tile pool of the stream's device, large enough; an unmap has none",
          kMapTiles) {
  CUarray array = Create(1024, 1024);
  const CUmemGenericAllocationHandle pool = Pool(unit_);
  CUarrayMapInfo info = Tiles(array, pool);
  info.deviceBitMask = 3;
  Refused(info);
  info.deviceBitMask = 0;
  Refused(info);
  info = Tiles(array, pool);
  info.offset = unit_;
  Refused(info);
  info = Tiles(array, pool);
  info.flags = 1;
  Refused(info);
  info = Tiles(array, pool);
  info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
  Refused(info);
  prop_.allocFlags.usage = 0;
  Refused(Tiles(array, Pool(unit_)));
  EXPECT_EQ(Map(Tiles(array, pool)), CUDA_SUCCESS);
  EXPECT_EQ(Map(Tiles(array, 0)), CUDA_SUCCESS);
}

RULE_TEST(SparseTest, OnlyTheWholeIsMapped,
          "plain arrays, and levels got from a mipmapped array, are not mapped", kMapTiles) {
  const CUmemGenericAllocationHandle pool = Pool(unit_);
  CUarrayMapInfo info = Tiles(Create(1024, 1024), pool);
  info.resource.array = Create(1024, 1024, 0, 0);
  Refused(info);
  CUDA_OK(cuMipmappedArrayGetLevel, &info.resource.array, Levels(1024, 1024, 2), 0);
  Refused(info);
}

RULE_TEST(SparseTest, AnArrayKeepsItsMemory,
          "memory that is mapped behind an array outlives its handle, until it is unmapped or the "
          "array destroyed",
          "CUDA Driver API 13.0, Virtual Memory Management, cuMemRelease") {
  const uint64_t before = FreeBytes();
  CUarray array = Create(1024, 1024);
  const CUmemGenericAllocationHandle pools[] = {Pool(unit_), Pool(unit_)};
  const uint64_t with = FreeBytes();
  EXPECT_LT(with, before);
  CUarrayMapInfo second = Tiles(array, pools[1]);
  second.subresource.sparseLevel.offsetY = Properties(array).tileExtent.height;
  ASSERT_EQ(Map(Tiles(array, pools[0])), CUDA_SUCCESS);
  ASSERT_EQ(Map(second), CUDA_SUCCESS);
  for (CUmemGenericAllocationHandle pool : pools) CUDA_OK(cuMemRelease, pool);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(FreeBytes(), with);
  ASSERT_EQ(Map(Tiles(array, 0)), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(FreeBytes(), with + (before - with) / 2);
  CUDA_OK(cuArrayDestroy, array);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(SparseTest, MapsAreInStreamOrder,
          "a map takes effect after the work before it in its stream, and before what is behind it",
          kMapTiles) {
  CUarray array = Create(1024, 1024);
  const CUmemGenericAllocationHandle pool = Pool(2 * kTile);
  ASSERT_EQ(Map(Tiles(array, pool)), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  Write(array, 0, 0, {1});
  volatile uint64_t* seen = HostWord(0);
  CUstream stream = NewStream();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = const_cast<uint64_t*>(seen);
  copy.WidthInBytes = 4;
  copy.Height = 1;
  CUDA_OK(cuMemcpy2DAsync_v2, &copy, stream);
  CUarrayMapInfo other = Tiles(array, pool);
  other.offset = kTile;
  ASSERT_EQ(Map(other, stream), CUDA_SUCCESS);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(*seen, 1u);
  Write(array, 0, 0, {2});
  ASSERT_EQ(Map(Tiles(array, pool)), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(Read(array, 0, 0, 1), (std::vector<uint32_t>{1}));
}

RULE_TEST(SparseTest, WhatIsNotMappedIsNotKept,
          "bytes written where nothing is mapped are lost, and nothing else is written",
          "docs/design/simulated-gpu.md: undefined on a GPU") {
  SIMULATED_ONLY("undefined on a GPU");
  CUarray array = Create(1024, 1024);
  const unsigned width = Properties(array).tileExtent.width;
  ASSERT_EQ(Map(Tiles(array, Pool(kTile))), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  Write(array, width - 1, 0, {3, 4});
  EXPECT_EQ(Read(array, width - 1, 0, 2), (std::vector<uint32_t>{3, 0}));
}

}  // namespace
}  // namespace prorata::conformance
