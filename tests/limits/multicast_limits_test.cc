// Multicast objects: free of charge, and what is bound to them stays charged while they keep it.

#include "limits.h"

namespace prorata::limits {
namespace {

class MulticastLimits : public LimitTest {
 protected:
  void SetUp() override {
    LimitTest::SetUp();
    if (HasFatalFailure()) return;
    SKIP_UNLESS(Has(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED), "multicast");
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    size_t unit = 0, needed = 0;
    CUDA_OK(cuMemGetAllocationGranularity, &unit, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    object_.numDevices = 1;
    object_.size = unit;
    SKIP_UNLESS(CUDA(cuMulticastGetGranularity)(&needed, &object_,
                                                CU_MULTICAST_GRANULARITY_MINIMUM) == CUDA_SUCCESS,
                "multicast teams of one device");
    if (needed > unit) unit = needed;
    bytes_ = (32 * kMib + unit - 1) / unit * unit;
    object_.size = 2 * bytes_;
  }

  // An object whose team is this device.
  CUmemGenericAllocationHandle Object() const {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(CUDA(cuMulticastCreate)(&handle, &object_), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMulticastAddDevice)(handle, device_), CUDA_SUCCESS);
    return handle;
  }
  CUmemGenericAllocationHandle Memory() const {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(CUDA(cuMemCreate)(&handle, bytes_, &prop_, 0), CUDA_SUCCESS);
    return handle;
  }

 public:
  CUresult BindMem(CUmemGenericAllocationHandle object, CUmemGenericAllocationHandle memory) const {
    return CUDA(cuMulticastBindMem)(object, 0, memory, 0, bytes_, 0);
  }
  // By an address that is no more when this returns.
  CUresult BindAddr(CUmemGenericAllocationHandle object,
                    CUmemGenericAllocationHandle memory) const {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuMemAddressReserve)(&address, bytes_, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemMap)(address, bytes_, 0, memory, 0), CUDA_SUCCESS);
    const CUresult result = CUDA(cuMulticastBindAddr)(object, 0, address, bytes_, 0);
    EXPECT_EQ(CUDA(cuMemUnmap)(address, bytes_), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemAddressFree)(address, bytes_), CUDA_SUCCESS);
    return result;
  }

 protected:
  using Binder = CUresult (MulticastLimits::*)(CUmemGenericAllocationHandle,
                                               CUmemGenericAllocationHandle) const;
  void KeepsWhatIsCharged(Binder bind) {
    LeaveRoom(bytes_);
    const CUmemGenericAllocationHandle object = Object(), memory = Memory();
    ASSERT_EQ((this->*bind)(object, memory), CUDA_SUCCESS);
    CUDA_OK(cuMemRelease, memory);
    EXPECT_TRUE(Charged(bytes_)) << "the object keeps it";
    CUmemGenericAllocationHandle other = 0;
    Refused([&] { return CUDA(cuMemCreate)(&other, bytes_, &prop_, 0); });
    CUDA_OK(cuMemRelease, object);
    EXPECT_TRUE(Charged(0));
  }
  void FitsAFullShare(Binder bind) {
    LeaveRoom(bytes_);
    const CUmemGenericAllocationHandle memory = Memory(), object = Object();
    EXPECT_TRUE(Charged(bytes_)) << "an object is free of charge";
    ASSERT_EQ((this->*bind)(object, memory), CUDA_SUCCESS);
    EXPECT_TRUE(Charged(bytes_));
    CUDA_OK(cuMemRelease, object);
    EXPECT_TRUE(Charged(bytes_)) << "the handle keeps it";
    CUDA_OK(cuMemRelease, memory);
    EXPECT_TRUE(Charged(0));
  }

  CUmemAllocationProp prop_{};
  CUmulticastObjectProp object_{};
  uint64_t bytes_ = 0;
};

TEST_F(MulticastLimits, MulticastBindMemKeepsWhatIsCharged) {
  KeepsWhatIsCharged(&MulticastLimits::BindMem);
}
TEST_F(MulticastLimits, MulticastBindMemFitsAFullShare) {
  FitsAFullShare(&MulticastLimits::BindMem);
}
TEST_F(MulticastLimits, MulticastBindAddrKeepsWhatIsCharged) {
  KeepsWhatIsCharged(&MulticastLimits::BindAddr);
}
TEST_F(MulticastLimits, MulticastBindAddrFitsAFullShare) {
  FitsAFullShare(&MulticastLimits::BindAddr);
}

TEST_F(MulticastLimits, AMappedObjectKeepsWhatIsBound) {
  const CUmemGenericAllocationHandle object = Object(), memory = Memory();
  ASSERT_EQ(BindMem(object, memory), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAddressReserve, &address, object_.size, 0, 0, 0);
  CUDA_OK(cuMemMap, address, object_.size, 0, object, 0);
  CUDA_OK(cuMemRelease, memory);
  CUDA_OK(cuMemRelease, object);
  EXPECT_TRUE(Charged(bytes_));
  CUDA_OK(cuMemUnmap, address, object_.size);
  CUDA_OK(cuMemAddressFree, address, object_.size);
  EXPECT_TRUE(Charged(0));
}

TEST_F(MulticastLimits, UnboundMemoryGoesWithTheObjectAtTheLatest) {
  const CUmemGenericAllocationHandle object = Object(), memory = Memory();
  ASSERT_EQ(BindMem(object, memory), CUDA_SUCCESS);
  CUDA_OK(cuMulticastUnbind, object, device_, 0, bytes_);
  EXPECT_TRUE(Charged(bytes_)) << "the handle keeps it";
  CUDA_OK(cuMemRelease, memory);
  CUDA_OK(cuMemRelease, object);
  EXPECT_TRUE(Charged(0));
}

}  // namespace
}  // namespace prorata::limits
