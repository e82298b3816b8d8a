// Plain, pitched and managed memory, with the first versions of 32-bit sizes; and memory of the
// host, which is not the share's.

#include <sys/mman.h>

#include "limits.h"

namespace prorata::limits {
namespace {

class LinearLimits : public LimitTest {
 protected:
  // What `make` (CUresult (CUdeviceptr*, bytes)) takes beyond its limit is refused, within it is
  // charged by slabs and given back.
  template <typename Make>
  void RefuseBeyond(Make&& make) {
    LeaveRoom(4 * kMib);
    CUdeviceptr address = 0;
    Refused([&] { return make(&address, 8 * kMib); });
  }
  template <typename Make>
  void Charge(Make&& make, uint64_t bytes, uint64_t charged) {
    LeaveRoom(charged);
    CUdeviceptr address = 0;
    ASSERT_EQ(make(&address, bytes), CUDA_SUCCESS) << bytes;
    EXPECT_TRUE(Charged(charged)) << bytes;
    CUDA_OK(cuMemFree_v2, address);
    EXPECT_TRUE(Charged(0)) << bytes;
    GiveRoomBack();
  }
  static CUresult Plain(CUdeviceptr* address, size_t bytes) {
    return CUDA(cuMemAlloc_v2)(address, bytes);
  }
  static CUresult First(CUdeviceptr* address, size_t bytes) {
    CUdeviceptr_v1 small = 0;
    const CUresult result = CUDA(cuMemAlloc)(&small, static_cast<unsigned>(bytes));
    *address = small;
    return result;
  }
  static CUresult Managed(CUdeviceptr* address, size_t bytes) {
    return CUDA(cuMemAllocManaged)(address, bytes, CU_MEM_ATTACH_GLOBAL);
  }
  static CUresult Pitched(CUdeviceptr* address, size_t bytes) {
    size_t pitch = 0;
    return CUDA(cuMemAllocPitch_v2)(address, &pitch, 1024, bytes / 1024, 4);
  }
  static CUresult PitchedFirst(CUdeviceptr* address, size_t bytes) {
    CUdeviceptr_v1 small = 0;
    unsigned int pitch = 0;
    const CUresult result =
        CUDA(cuMemAllocPitch)(&small, &pitch, 1024, static_cast<unsigned>(bytes / 1024), 4);
    *address = small;
    return result;
  }
};

TEST_F(LinearLimits, MemAllocRefused) {
  RefuseBeyond(Plain);
  GiveRoomBack();
  RefuseBeyond(First);
}

TEST_F(LinearLimits, MemAllocCharged) {
  Charge(Plain, 1, kSlab);
  Charge(Plain, kSlab, kSlab);
  Charge(Plain, kSlab + 1, 2 * kSlab);
  Charge(Plain, 5 * kSlab, 5 * kSlab);
}

TEST_F(LinearLimits, MemAllocHugeIsRefusedAndNothingIsCharged) {
  for (const size_t bytes : {~size_t{0}, ~size_t{0} - kSlab, size_t{1} << 60}) {
    CUdeviceptr address = 0;
    Refused([&] { return CUDA(cuMemAlloc_v2)(&address, bytes); });
  }
  CUdeviceptr address = 0;
  EXPECT_EQ(CUDA(cuMemAlloc_v2)(&address, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(LinearLimits, MemAllocSmallOnesShareASlab) {
  CUdeviceptr addresses[8] = {};
  for (CUdeviceptr& address : addresses) {
    CUDA_OK(cuMemAlloc_v2, &address, 1000);
  }
  EXPECT_TRUE(Charged(kSlab));
  for (CUdeviceptr address : addresses) {
    CUDA_OK(cuMemFree_v2, address);
  }
  EXPECT_TRUE(Charged(0));
}

TEST_F(LinearLimits, MemAllocManagedRefused) {
  SKIP_UNLESS(Has(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY), "managed memory");
  RefuseBeyond(Managed);
}

TEST_F(LinearLimits, MemAllocManagedCharged) {
  SKIP_UNLESS(Has(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY), "managed memory");
  Charge(Managed, 5 * kSlab, 5 * kSlab);
}

TEST_F(LinearLimits, MemAllocPitchRefused) {
  RefuseBeyond(Pitched);
  GiveRoomBack();
  RefuseBeyond(PitchedFirst);
}

TEST_F(LinearLimits, MemAllocPitchCharged) {
  // The rows at their pitch: more than their width.
  CUdeviceptr address = 0;
  size_t pitch = 0;
  CUDA_OK(cuMemAllocPitch_v2, &address, &pitch, 100, 50'000, 4);
  ASSERT_GE(pitch, 100U);
  EXPECT_TRUE(Charged((pitch * 50'000 + kSlab - 1) / kSlab * kSlab));
  CUDA_OK(cuMemFree_v2, address);
  EXPECT_TRUE(Charged(0));
  Charge(Pitched, 5 * kSlab, 5 * kSlab);
}

TEST_F(LinearLimits, MemFreeMakesRoom) {
  LeaveRoom(8 * kMib);
  CUdeviceptr address = 0, more = 0;
  CUDA_OK(cuMemAlloc_v2, &address, 8 * kMib);
  Refused([&] { return CUDA(cuMemAlloc_v2)(&more, 8 * kMib); });
  CUDA_OK(cuMemFree_v2, address);
  CUDA_OK(cuMemAlloc_v2, &more, 8 * kMib);
  CUDA_OK(cuMemFree_v2, more);
}

TEST_F(LinearLimits, MemFreeGivesBack) {
  CUdeviceptr address = 0, other = 0;
  CUDA_OK(cuMemAlloc_v2, &address, 8 * kMib);
  CUDA_OK(cuMemAlloc_v2, &other, 8 * kMib);
  EXPECT_TRUE(Charged(16 * kMib));
  CUDA_OK(cuMemFree_v2, address);
  EXPECT_TRUE(Charged(8 * kMib));
  // What fails gives nothing back: neither again, nor inside of another allocation.
  EXPECT_EQ(CUDA(cuMemFree_v2)(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CUDA(cuMemFree_v2)(other + 4 * kMib), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemFree_v2, 0);
  EXPECT_TRUE(Charged(8 * kMib));
  CUDA_OK(cuMemFree_v2, other);
  EXPECT_TRUE(Charged(0));
}

TEST_F(LinearLimits, MemFreeComesWithTheContext) {
  CUcontext second = nullptr;
  CUDA_OK(cuCtxCreate_v2, &second, 0, device_);
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAlloc_v2, &address, 8 * kMib);
  CUDA_OK(cuMemAlloc_v2, &address, 1000);
  CUDA_OK(cuCtxDestroy_v2, second);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  EXPECT_TRUE(Charged(0));
}

// --- Memory of the host: free of charge ---------------------------------------------------------

TEST_F(LinearLimits, MemHostAllocIsFreeOfCharge) {
  LeaveRoom(0);
  const uint64_t free_bytes = Free();
  void* memory = nullptr;
  CUDA_OK(cuMemHostAlloc, &memory, 64 * kMib, CU_MEMHOSTALLOC_DEVICEMAP);
  CUdeviceptr mapped = 0;
  CUDA_OK(cuMemHostGetDevicePointer_v2, &mapped, memory, 0);
  EXPECT_EQ(Free(), free_bytes);
  CUDA_OK(cuMemFreeHost, memory);
  CUDA_OK(cuMemAllocHost_v2, &memory, 64 * kMib);
  EXPECT_EQ(Free(), free_bytes);
  CUDA_OK(cuMemFreeHost, memory);
  EXPECT_EQ(Free(), free_bytes);
}

TEST_F(LinearLimits, MemHostRegisterIsFreeOfCharge) {
  LeaveRoom(0);
  const uint64_t free_bytes = Free();
  const size_t bytes = 64 * kMib;
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  CUDA_OK(cuMemHostRegister_v2, pages, bytes, CU_MEMHOSTREGISTER_DEVICEMAP);
  CUdeviceptr mapped = 0;
  CUDA_OK(cuMemHostGetDevicePointer_v2, &mapped, pages, 0);
  EXPECT_EQ(Free(), free_bytes);
  CUDA_OK(cuMemHostUnregister, pages);
  munmap(pages, bytes);
  EXPECT_EQ(Free(), free_bytes);
}

}  // namespace
}  // namespace prorata::limits
