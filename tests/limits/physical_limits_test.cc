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

}  // namespace
}  // namespace prorata::limits
