// Multicast objects: teams of devices, and what is bound to them.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kCreateMulticast[] =
    "CUDA Driver API 13.0, Multicast Object Management, cuMulticastCreate";
constexpr char kAdd[] = "CUDA Driver API 13.0, Multicast Object Management, cuMulticastAddDevice";
constexpr char kBind[] = "CUDA Driver API 13.0, Multicast Object Management, cuMulticastBindMem";
constexpr char kBindAddr[] =
    "CUDA Driver API 13.0, Multicast Object Management, cuMulticastBindAddr";
constexpr char kUnbind[] = "CUDA Driver API 13.0, Multicast Object Management, cuMulticastUnbind";

// Two devices of a team, and one that has no multicast.
constexpr char kMachine[] = R"(
[[devices]]
multicast = true
[[devices]]
multicast = true
[[devices]]
[[links]]
devices = [0, 1]
type = "nvlink"
)";

class MulticastTest : public DriverTest {
 protected:
  void SetUp() override {
    if (OnRealGpu() || getenv("PRORATA_CONFORMANCE_FRESH_PROCESS") != nullptr) DriverTest::SetUp();
  }

  // What a test begins with: true where it is to do nothing more.
  bool RanElsewhere() {
    if (!InFreshProcessOn(kMachine)) return true;
    int count = 0;
    CUDA(cuDeviceGetCount)(&count);
    for (int i = 0; i < 2; ++i) {
      int supported = 0;
      if (i < count) {
        CUDA(cuDeviceGetAttribute)(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, i);
      }
      if (supported == 0) return true;
      // Physical memory is a device's that has a context.
      CUcontext ctx = nullptr;
      EXPECT_EQ(CUDA(cuDevicePrimaryCtxRetain)(&ctx, i), CUDA_SUCCESS);
    }
    object_ = {2, 0, 0, 0};
    EXPECT_EQ(CUDA(cuMulticastGetGranularity)(&unit_, &object_, CU_MULTICAST_GRANULARITY_MINIMUM),
              CUDA_SUCCESS);
    object_.size = 4 * unit_;
    return false;
  }
  CUmemGenericAllocationHandle Create(unsigned devices = 2) {
    CUmemGenericAllocationHandle handle = 0;
    object_.numDevices = devices;
    EXPECT_EQ(CUDA(cuMulticastCreate)(&handle, &object_), CUDA_SUCCESS);
    return handle;
  }
  CUmemGenericAllocationHandle Team() {
    const CUmemGenericAllocationHandle handle = Create();
    for (int device = 0; device < 2; ++device) {
      EXPECT_EQ(CUDA(cuMulticastAddDevice)(handle, device), CUDA_SUCCESS);
    }
    return handle;
  }
  CUmemGenericAllocationHandle Memory(int device, size_t units) const {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(CUDA(cuMemCreate)(&handle, units * unit_, &prop, 0), CUDA_SUCCESS);
    return handle;
  }
  CUresult Bind(CUmemGenericAllocationHandle object, size_t at, CUmemGenericAllocationHandle memory,
                size_t units) const {
    return CUDA(cuMulticastBindMem)(object, at * unit_, memory, 0, units * unit_, 0);
  }

  CUmulticastObjectProp object_{};
  size_t unit_ = 0;
};

RULE_TEST(MulticastTest, ItsSizeIsWholeUnits,
          "a multicast object's size is a multiple of its minimum granularity, its flags are zero, "
          "and it has devices",
          kCreateMulticast) {
  if (RanElsewhere()) return;
  EXPECT_GT(unit_, 0u);
  CUmemGenericAllocationHandle handle = 0;
  object_.size = unit_ / 2;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastCreate, &handle, &object_);
  object_.size = unit_;
  object_.flags = 1;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastCreate, &handle, &object_);
  object_.flags = 0;
  object_.numDevices = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastCreate, &handle, &object_);
  object_.numDevices = 2;
  CUDA_OK(cuMulticastCreate, &handle, &object_);
  CUDA_OK(cuMemRelease, handle);
}

RULE_TEST(MulticastTest, ItTakesNoMemory,
          "a multicast object has no memory: what is bound to it was there before",
          kCreateMulticast) {
  if (RanElsewhere()) return;
  SIMULATED_ONLY("a driver may need a little for its tables");
  const uint64_t before = FreeBytes();
  const CUmemGenericAllocationHandle object = Team();
  const CUmemGenericAllocationHandle memory = Memory(0, 2);
  const uint64_t with = FreeBytes();
  ASSERT_EQ(Bind(object, 0, memory, 2), CUDA_SUCCESS);
  EXPECT_EQ(FreeBytes(), with);
  CUDA_OK(cuMemRelease, memory);
  CUDA_OK(cuMemRelease, object);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(MulticastTest, DevicesJoinOnce,
          "as many devices join a team as was said when it was made, each once, and only such as "
          "have multicast",
          kAdd) {
  if (RanElsewhere()) return;
  SIMULATED_ONLY("which error is not stated, nor is there a device without multicast");
  const CUmemGenericAllocationHandle object = Create();
  CUDA_OK(cuMulticastAddDevice, object, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice, object, 0);
  CUDA_IS(CUDA_ERROR_NOT_SUPPORTED, cuMulticastAddDevice, object, 2);
  CUDA_OK(cuMulticastAddDevice, object, 1);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice, object, 1);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice, Memory(0, 1), 0);
}

RULE_TEST(MulticastTest, BindingWaitsForTheTeam,
          "binding memory, and mapping the object, waits until all devices have joined", kAdd) {
  if (RanElsewhere()) return;
  const CUmemGenericAllocationHandle object = Create();
  const CUmemGenericAllocationHandle memory = Memory(0, 1);
  CUdeviceptr range = 0;
  CUDA_OK(cuMemAddressReserve, &range, object_.size, 0, 0, 0);
  CUDA_OK(cuMulticastAddDevice, object, 0);
  std::atomic<int> done = 0;
  CUresult bound = CUDA_ERROR_UNKNOWN;
  CUresult mapped = CUDA_ERROR_UNKNOWN;
  std::thread binds([&] {
    bound = Bind(object, 0, memory, 1);
    ++done;
  });
  std::thread maps([&] {
    mapped = CUDA(cuMemMap)(range, object_.size, 0, object, 0);
    ++done;
  });
  // They wait however long this takes; a driver that does not wait is found out.
  for (int i = 0; i < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(done, 0);
  }
  EXPECT_EQ(CUDA(cuMulticastAddDevice)(object, 1), CUDA_SUCCESS);
  binds.join();
  maps.join();
  EXPECT_EQ(bound, CUDA_SUCCESS);
  EXPECT_EQ(mapped, CUDA_SUCCESS);
  CUDA_OK(cuMemUnmap, range, object_.size);
}

RULE_TEST(MulticastTest, BindingsAreWholeUnitsInside,
          "sizes and offsets of a binding are whole units inside the memory and the object",
          kBind) {
  if (RanElsewhere()) return;
  const CUmemGenericAllocationHandle object = Team();
  const CUmemGenericAllocationHandle memory = Memory(0, 2);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem, object, 0, memory, 0, unit_ / 2, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem, object, unit_ / 2, memory, 0, unit_, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem, object, 0, memory, unit_ / 2, unit_, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem, object, 0, memory, unit_, 2 * unit_, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem, object, 3 * unit_, memory, 0, 2 * unit_, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem, object, 0, memory, 0, unit_, 1);
  EXPECT_NE(CUDA(cuMulticastBindMem)(memory, 0, memory, 0, unit_, 0), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuMulticastBindMem)(object, 0, object, 0, unit_, 0), CUDA_SUCCESS);
  CUDA_OK(cuMulticastBindMem, object, 2 * unit_, memory, unit_, unit_, 0);
}

RULE_TEST(MulticastTest, EachDeviceBindsItsOwn,
          "every device of a team binds memory to the same range; no other device's can be bound",
          kBind) {
  if (RanElsewhere()) return;
  const CUmemGenericAllocationHandle object = Team();
  ASSERT_EQ(Bind(object, 0, Memory(0, 2), 2), CUDA_SUCCESS);
  ASSERT_EQ(Bind(object, 0, Memory(1, 2), 2), CUDA_SUCCESS);
  if (OnRealGpu()) return;
  EXPECT_EQ(Bind(object, 1, Memory(0, 1), 1), CUDA_ERROR_INVALID_VALUE) << "bound already";
  CUcontext ctx = nullptr;
  CUDA_OK(cuDevicePrimaryCtxRetain, &ctx, 2);
  EXPECT_EQ(Bind(object, 2, Memory(2, 1), 1), CUDA_ERROR_INVALID_DEVICE);
}

RULE_TEST(MulticastTest, AddressesAreBound,
          "memory is bound by the address where it is mapped, inside one mapping", kBindAddr) {
  if (RanElsewhere()) return;
  const CUmemGenericAllocationHandle object = Team();
  CUdeviceptr range = 0;
  CUDA_OK(cuMemAddressReserve, &range, 4 * unit_, unit_, 0, 0);
  CUDA_OK(cuMemMap, range, 2 * unit_, 0, Memory(0, 2), 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastBindAddr, object, 0, range + unit_, 2 * unit_, 0);
  EXPECT_NE(CUDA(cuMulticastBindAddr)(object, 0, range + 3 * unit_, unit_, 0), CUDA_SUCCESS);
  CUDA_OK(cuMulticastBindAddr, object, 0, range + unit_, unit_, 0);
  CUDA_OK(cuMulticastUnbind, object, 0, 0, unit_);
  CUDA_OK(cuMemUnmap, range, 2 * unit_);
}

RULE_TEST(MulticastTest, ItKeepsWhatIsBound,
          "memory that is bound outlives its handle, until it is unbound or the object is gone",
          kUnbind) {
  if (RanElsewhere()) return;
  const uint64_t before = FreeBytes();
  const CUmemGenericAllocationHandle object = Team();
  const CUmemGenericAllocationHandle first = Memory(0, 1);
  const CUmemGenericAllocationHandle second = Memory(0, 1);
  ASSERT_EQ(Bind(object, 0, first, 1), CUDA_SUCCESS);
  ASSERT_EQ(Bind(object, 1, second, 1), CUDA_SUCCESS);
  const uint64_t with = FreeBytes();
  CUDA_OK(cuMemRelease, first);
  CUDA_OK(cuMemRelease, second);
  EXPECT_EQ(FreeBytes(), with);
  CUDA_OK(cuMulticastUnbind, object, 0, 0, unit_);
  EXPECT_EQ(FreeBytes(), with + unit_);
  if (!OnRealGpu()) {  // "may result in undefined behavior"
    CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastUnbind, object, 0, 0, unit_);
    CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMulticastUnbind, object, 0, unit_, 2 * unit_);
  }
  CUDA_OK(cuMemRelease, object);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(MulticastTest, AMappingKeepsTheObject,
          "a mapped multicast object outlives its handle, and so does what is bound to it",
          "CUDA Driver API 13.0, Virtual Memory Management, cuMemRelease") {
  if (RanElsewhere()) return;
  const uint64_t before = FreeBytes();
  const CUmemGenericAllocationHandle object = Team();
  const CUmemGenericAllocationHandle memory = Memory(0, 2);
  ASSERT_EQ(Bind(object, 0, memory, 2), CUDA_SUCCESS);
  CUdeviceptr range = 0;
  CUDA_OK(cuMemAddressReserve, &range, object_.size, unit_, 0, 0);
  CUDA_OK(cuMemMap, range, object_.size, 0, object, 0);
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUDA_OK(cuMemSetAccess, range, object_.size, &access, 1);
  CUDA_OK(cuMemRelease, memory);
  CUDA_OK(cuMemRelease, object);
  EXPECT_EQ(FreeBytes(), before - 2 * unit_);
  CUDA_OK(cuMemUnmap, range, object_.size);
  EXPECT_EQ(FreeBytes(), before);
}

}  // namespace
}  // namespace prorata::conformance
