// Device memory: slabs, addresses, what is left, copies, fills, pinned and virtual memory.

#include <cstring>
#include <numeric>
#include <vector>

#include "driver.h"

namespace prorata::simgpu {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kSlab = 2 * kMiB;

using MemoryTest = DriverTest;

TEST_F(MemoryTest, SmallAllocationsShareASlabAndGiveItBackEmpty) {
  const uint64_t before = FreeBytes();
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  CUDA_OK(cuMemAlloc_v2, &a, 100);
  EXPECT_EQ(FreeBytes(), before - kSlab);
  CUDA_OK(cuMemAlloc_v2, &b, 512 * 1024);
  EXPECT_EQ(FreeBytes(), before - kSlab);
  EXPECT_EQ(a % 512, 0u);
  EXPECT_EQ(b % 512, 0u);
  EXPECT_EQ(a / kSlab, b / kSlab);
  CUDA_OK(cuMemFree_v2, a);
  EXPECT_EQ(FreeBytes(), before - kSlab);
  CUDA_OK(cuMemFree_v2, b);
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(MemoryTest, LargeAllocationsHaveSlabsOfTheirOwn) {
  const uint64_t before = FreeBytes();
  CUdeviceptr a = 0;
  CUDA_OK(cuMemAlloc_v2, &a, kSlab + 1);
  EXPECT_EQ(a % kSlab, 0u);
  EXPECT_EQ(FreeBytes(), before - 2 * kSlab);
  CUDA_OK(cuMemFree_v2, a);
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(MemoryTest, TheDeviceCanBeFilledAndSaysSo) {
  std::vector<CUdeviceptr> all;
  CUdeviceptr address = 0;
  CUresult result;
  while ((result = CUDA(cuMemAlloc_v2)(&address, 1024 * kMiB)) == CUDA_SUCCESS) {
    all.push_back(address);
  }
  EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(all.size(), 15u);  // 16 GiB less the context
  for (CUdeviceptr each : all) CUDA_OK(cuMemFree_v2, each);
  CUDA_OK(cuMemAlloc_v2, &address, 1024 * kMiB);
  CUDA_OK(cuMemFree_v2, address);
}

TEST_F(MemoryTest, BadArgumentsAreRefused) {
  CUdeviceptr address = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2, &address, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2, nullptr, 1);
  CUDA_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2, &address, uint64_t{1} << 60);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, 0x1234);
  CUDA_OK(cuMemAlloc_v2, &address, 4096);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, address + 512);
  char byte = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2, address + 4096, &byte, 1);
  CUDA_OK(cuMemFree_v2, address);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, address);
  CUDA_OK(cuMemFree_v2, 0);
}

TEST_F(MemoryTest, CopiesMoveBytesBothWaysAndOnTheDevice) {
  std::vector<uint32_t> out(100'000);
  std::iota(out.begin(), out.end(), 7);
  const size_t bytes = out.size() * sizeof(out[0]);
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  CUDA_OK(cuMemAlloc_v2, &a, bytes);
  CUDA_OK(cuMemAlloc_v2, &b, bytes);
  CUDA_OK(cuMemcpyHtoD_v2, a, out.data(), bytes);
  CUDA_OK(cuMemcpyDtoD_v2, b, a, bytes);
  std::vector<uint32_t> back(out.size());
  CUDA_OK(cuMemcpy, reinterpret_cast<CUdeviceptr>(back.data()), b, bytes);
  EXPECT_EQ(back, out);
}

TEST_F(MemoryTest, PageableBytesAreTakenBeforeAnAsyncCopyReturns) {
  CUstream stream;
  CUDA_OK(cuStreamCreate, &stream, 0);
  const CUdeviceptr gate = NewWord(0);
  const CUdeviceptr word = NewWord(0);
  ASSERT_EQ(Step(stream, gate, 1, 1, 20'000'000), CUDA_SUCCESS);  // the copy waits behind this
  uint64_t value = 42;
  CUDA_OK(cuMemcpyHtoDAsync_v2, word, &value, sizeof(value), stream);
  value = 43;
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(ReadWord(word), 42u);
}

TEST_F(MemoryTest, FillsOfAllWidths) {
  CUdeviceptr a = 0;
  CUDA_OK(cuMemAlloc_v2, &a, 64);
  CUDA_OK(cuMemsetD8_v2, a, 0xff, 64);
  CUDA_OK(cuMemsetD32_v2, a, 0x01020304, 4);
  CUDA_OK(cuMemsetD16_v2, a + 16, 0x0506, 4);
  CUDA_OK(cuMemsetD2D8_v2, a + 32, 8, 0x77, 2, 3);
  uint8_t seen[64];
  CUDA_OK(cuMemcpyDtoH_v2, seen, a, sizeof(seen));
  EXPECT_EQ(seen[0], 4);
  EXPECT_EQ(seen[15], 1);
  EXPECT_EQ(seen[16], 6);
  EXPECT_EQ(seen[23], 5);
  EXPECT_EQ(seen[24], 0xff);
  EXPECT_EQ(seen[33], 0x77);
  EXPECT_EQ(seen[34], 0xff);
  EXPECT_EQ(seen[48], 0x77);
  EXPECT_EQ(seen[56], 0xff);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2, a + 2, 0, 1);
}

TEST_F(MemoryTest, RectanglesKeepTheirPitch) {
  CUdeviceptr a = 0;
  size_t pitch = 0;
  CUDA_OK(cuMemAllocPitch_v2, &a, &pitch, 100, 10, 4);
  EXPECT_EQ(pitch, 512u);
  std::vector<uint8_t> host(100 * 10);
  std::iota(host.begin(), host.end(), 0);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 100;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = a;
  copy.dstPitch = pitch;
  copy.WidthInBytes = 100;
  copy.Height = 10;
  CUDA_OK(cuMemcpy2D_v2, &copy);
  uint8_t row[100];
  CUDA_OK(cuMemcpyDtoH_v2, row, a + 3 * pitch, 100);
  EXPECT_EQ(std::memcmp(row, host.data() + 300, 100), 0);
}

TEST_F(MemoryTest, ArraysHoldWhatIsCopiedIn) {
  CUDA_ARRAY_DESCRIPTOR shape = {64, 4, CU_AD_FORMAT_FLOAT, 1};
  CUarray array;
  const uint64_t before = FreeBytes();
  CUDA_OK(cuArrayCreate_v2, &array, &shape);
  EXPECT_LT(FreeBytes(), before);
  float row[64];
  for (int i = 0; i < 64; ++i) row[i] = static_cast<float>(i);
  CUDA_OK(cuMemcpyHtoA_v2, array, 0, row, sizeof(row));
  float back[64] = {};
  CUDA_OK(cuMemcpyAtoH_v2, back, array, 0, sizeof(back));
  EXPECT_EQ(std::memcmp(row, back, sizeof(row)), 0);
  CUDA_OK(cuArrayDestroy, array);
  EXPECT_EQ(FreeBytes(), before);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy, array);
}

TEST_F(MemoryTest, MipmapsCostAllTheirLevels) {
  // 1024 x 1024 floats are 4 MiB; with all levels 4/3 of it, so three slabs.
  CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUmipmappedArray mipmap;
  const uint64_t before = FreeBytes();
  CUDA_OK(cuMipmappedArrayCreate, &mipmap, &shape, 11);
  EXPECT_EQ(FreeBytes(), before - 3 * kSlab);
  CUarray level;
  CUDA_OK(cuMipmappedArrayGetLevel, &level, mipmap, 10);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel, &level, mipmap, 11);
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(MemoryTest, PointersSayWhatTheyAre) {
  CUdeviceptr device = 0;
  void* host = nullptr;
  CUDA_OK(cuMemAlloc_v2, &device, 1000);
  CUDA_OK(cuMemAllocHost_v2, &host, 1000);
  unsigned type = 0;
  CUDA_OK(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device + 999);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  CUDA_OK(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
          reinterpret_cast<CUdeviceptr>(host));
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_HOST});
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
          reinterpret_cast<CUdeviceptr>(&type));
  CUdeviceptr base = 0;
  size_t size = 0;
  CUDA_OK(cuMemGetAddressRange_v2, &base, &size, device + 10);
  EXPECT_EQ(base, device);
  EXPECT_EQ(size, 1000u);
  CUDA_OK(cuMemFreeHost, host);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost, host);
}

TEST_F(MemoryTest, RegisteredMemoryCannotBeRegisteredTwice) {
  std::vector<char> host(10'000);
  CUDA_OK(cuMemHostRegister_v2, host.data(), host.size(), 0);
  CUDA_IS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2, host.data() + 100, 10,
          0);
  CUdeviceptr device = 0;
  CUDA_OK(cuMemHostGetDevicePointer_v2, &device, host.data(), 0);
  EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(host.data()));
  CUDA_OK(cuMemHostUnregister, host.data());
  CUDA_IS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister, host.data());
}

TEST_F(MemoryTest, ManagedMemoryIsTouchedByTheCpu) {
  CUdeviceptr managed = 0;
  CUDA_OK(cuMemAllocManaged, &managed, 4096, CU_MEM_ATTACH_GLOBAL);
  *reinterpret_cast<uint64_t*>(managed) = 5;
  ASSERT_EQ(Step(nullptr, managed, 2, 1, 1000), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(managed), 11u);
}

class VirtualMemoryTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    access_ = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  }

  CUmemAllocationProp prop_{};
  CUmemAccessDesc access_{};
};

TEST_F(VirtualMemoryTest, PhysicalMemoryIsPaidOnceAndUsedWhereItIsMapped) {
  size_t granularity = 0;
  CUDA_OK(cuMemGetAllocationGranularity, &granularity, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  EXPECT_EQ(granularity, kSlab);
  const uint64_t before = FreeBytes();
  CUdeviceptr range = 0;
  CUDA_OK(cuMemAddressReserve, &range, 8 * kSlab, 0, 0, 0);
  EXPECT_EQ(FreeBytes(), before);
  CUmemGenericAllocationHandle handle;
  CUDA_OK(cuMemCreate, &handle, 2 * kSlab, &prop_, 0);
  EXPECT_EQ(FreeBytes(), before - 2 * kSlab);
  CUDA_OK(cuMemMap, range + kSlab, 2 * kSlab, 0, handle, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemMap, range, 2 * kSlab, 0, handle, 0);
  uint64_t value = 99;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2, range + kSlab, &value, 8);  // no access yet
  CUDA_OK(cuMemSetAccess, range + kSlab, 2 * kSlab, &access_, 1);
  CUDA_OK(cuMemcpyHtoD_v2, range + kSlab + 4096, &value, 8);
  EXPECT_EQ(ReadWord(range + kSlab + 4096), 99u);
  CUDA_OK(cuMemRelease, handle);
  EXPECT_EQ(FreeBytes(), before - 2 * kSlab);  // still mapped
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree, range, 8 * kSlab);
  CUDA_OK(cuMemUnmap, range + kSlab, 2 * kSlab);
  EXPECT_EQ(FreeBytes(), before);
  CUDA_OK(cuMemAddressFree, range, 8 * kSlab);
}

TEST_F(VirtualMemoryTest, MemoryMappedElsewhereKeepsItsBytes) {
  CUmemGenericAllocationHandle handle;
  CUdeviceptr range = 0;
  CUDA_OK(cuMemCreate, &handle, kSlab, &prop_, 0);
  CUDA_OK(cuMemAddressReserve, &range, 4 * kSlab, 0, 0, 0);
  CUDA_OK(cuMemMap, range, kSlab, 0, handle, 0);
  CUDA_OK(cuMemSetAccess, range, kSlab, &access_, 1);
  uint64_t value = 1234;
  CUDA_OK(cuMemcpyHtoD_v2, range, &value, 8);
  CUDA_OK(cuMemUnmap, range, kSlab);
  CUDA_OK(cuMemMap, range + 2 * kSlab, kSlab, 0, handle, 0);
  CUDA_OK(cuMemSetAccess, range + 2 * kSlab, kSlab, &access_, 1);
  EXPECT_EQ(ReadWord(range + 2 * kSlab), 1234u);
}

TEST_F(VirtualMemoryTest, SizesMustBeWholeSlabs) {
  CUmemGenericAllocationHandle handle;
  CUdeviceptr range = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &handle, kMiB, &prop_, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve, &range, kMiB, 0, 0, 0);
  CUDA_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate, &handle, 64 * 1024 * kMiB, &prop_, 0);
}

}  // namespace
}  // namespace prorata::simgpu
