// Pinned host memory: allocated by the driver, or registered with it.

#include <cstdlib>
#include <thread>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

class HostMemoryTest : public DriverTest {
 protected:
  void* Allocate(size_t bytes, unsigned flags) {
    void* host = nullptr;
    EXPECT_EQ(CUDA(cuMemHostAlloc)(&host, bytes, flags), CUDA_SUCCESS);
    return host;
  }
};

// Pages of the program, for registering: page-aligned, as drivers before 13 asked for.
class Pages {
 public:
  explicit Pages(size_t bytes) : at_(std::aligned_alloc(4096, bytes)) {}
  ~Pages() { std::free(at_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* at() const { return static_cast<char*>(at_); }

 private:
  void* at_;
};

RULE_TEST(HostMemoryTest, TheCpuReadsAndWritesIt,
          "pinned memory is host memory that the device reaches at the same address",
          "CUDA Driver API 13.0, Memory Management, cuMemAllocHost") {
  void* host = nullptr;
  CUDA_OK(cuMemAllocHost_v2, &host, 4096);
  auto* word = static_cast<volatile uint64_t*>(host);
  *word = 20;
  ASSERT_EQ(Step(nullptr, reinterpret_cast<CUdeviceptr>(host), 2, 2, 1000), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(*word, 42u);
  CUDA_OK(cuMemFreeHost, host);
}

RULE_TEST(HostMemoryTest, NothingIsRefused,
          "cuMemHostAlloc refuses an allocation without a place for its address",
          "CUDA Driver API 13.0, Memory Management, cuMemHostAlloc (return values)") {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc, nullptr, 4096, 0);
}

RULE_TEST(HostMemoryTest, UnknownFlagsAreRefused,
          "cuMemHostAlloc knows PORTABLE, DEVICEMAP and WRITECOMBINED, and no other flag",
          "CUDA Driver API 13.0, Memory Management, cuMemHostAlloc") {
  void* host = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc, &host, 4096, 0x80);
}

RULE_TEST(HostMemoryTest, TheFlagsAreIndependentAndRemembered,
          "all combinations of the flags are allowed; cuMemHostGetFlags gives those asked for",
          "CUDA Driver API 13.0, Memory Management, cuMemHostAlloc and cuMemHostGetFlags") {
  for (unsigned flags = 0; flags < 8; ++flags) {
    void* host = Allocate(4096, flags);
    unsigned seen = 0;
    CUDA_OK(cuMemHostGetFlags, &seen, host);
    EXPECT_EQ(seen & flags, flags);
    EXPECT_EQ(seen & CU_MEMHOSTALLOC_WRITECOMBINED, flags & CU_MEMHOSTALLOC_WRITECOMBINED);
    CUDA_OK(cuMemFreeHost, host);
  }
}

RULE_TEST(HostMemoryTest, FlagsOfOtherMemoryAreRefused,
          "cuMemHostGetFlags fails for memory that is not of cuMemAllocHost or cuMemHostAlloc",
          "CUDA Driver API 13.0, Memory Management, cuMemHostGetFlags") {
  unsigned flags = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetFlags, &flags, &flags);
  CUdeviceptr device = 0;
  CUDA_OK(cuMemAlloc_v2, &device, 4096);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetFlags, &flags, reinterpret_cast<void*>(device));
}

RULE_TEST(HostMemoryTest, TheDevicePointerIsTheHostPointer,
          "with unified addressing the device pointer of pinned memory equals the host pointer",
          "CUDA Driver API 13.0, Memory Management, cuMemHostAlloc; Unified Addressing") {
  void* host = Allocate(4096, CU_MEMHOSTALLOC_DEVICEMAP);
  CUdeviceptr device = 0;
  CUDA_OK(cuMemHostGetDevicePointer_v2, &device, host, 0);
  EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(host));
  CUDA_OK(cuMemHostGetDevicePointer_v2, &device, static_cast<char*>(host) + 100, 0);
  EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(host) + 100);
}

RULE_TEST(HostMemoryTest, DevicePointerFlagsMustBeZero,
          "cuMemHostGetDevicePointer's Flags must be 0",
          "CUDA Driver API 13.0, Memory Management, cuMemHostGetDevicePointer") {
  void* host = Allocate(4096, CU_MEMHOSTALLOC_DEVICEMAP);
  CUdeviceptr device = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer_v2, &device, host, 1);
}

RULE_TEST(HostMemoryTest, PinnedMemoryIsFreedOnce,
          "cuMemFreeHost takes a living allocation's own address only",
          "CUDA Driver API 13.0, Memory Management, cuMemFreeHost") {
  void* host = Allocate(8192, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost, static_cast<char*>(host) + 4096);
  CUDA_OK(cuMemFreeHost, host);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost, host);
}

RULE_TEST(HostMemoryTest, PinnedMemoryCostsNoDeviceMemory,
          "pinned host memory does not count as the device's",
          "CUDA Driver API 13.0, Memory Management, cuMemAllocHost (host memory)") {
  const uint64_t before = FreeBytes();
  void* host = Allocate(16 << 20, 0);
  EXPECT_EQ(FreeBytes(), before);
  CUDA_OK(cuMemFreeHost, host);
}

RULE_TEST(HostMemoryTest, RegisteredPagesAreReachedByTheDevice,
          "registered memory is mapped for the device, at the pointer cuMemHostGetDevicePointer "
          "gives",
          "CUDA Driver API 13.0, Memory Management, cuMemHostRegister") {
  Pages pages(8192);
  auto* word = reinterpret_cast<volatile uint64_t*>(pages.at());
  *word = 1;
  CUDA_OK(cuMemHostRegister_v2, pages.at(), 8192, CU_MEMHOSTREGISTER_DEVICEMAP);
  CUdeviceptr device = 0;
  CUDA_OK(cuMemHostGetDevicePointer_v2, &device, pages.at(), 0);
  ASSERT_EQ(Step(nullptr, device, 5, 5, 1000), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(*word, 10u);
  CUDA_OK(cuMemHostUnregister, pages.at());
}

RULE_TEST(HostMemoryTest, AnUnregisteredPointerHasNoDevicePointer,
          "memory that is neither allocated nor registered is CUDA_ERROR_INVALID_VALUE to "
          "cuMemHostGetDevicePointer",
          "CUDA Driver API 13.0, Memory Management, cuMemHostGetDevicePointer") {
  int pageable = 0;
  CUDA_OK(cuDeviceGetAttribute, &pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0);
  if (pageable) GTEST_SKIP() << "this device reaches all host memory";
  Pages pages(4096);
  CUdeviceptr device = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer_v2, &device, pages.at(), 0);
}

RULE_TEST(HostMemoryTest, NothingIsRegisteredTwice,
          "registering memory that is registered is CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
          "CUDA Driver API 13.0, Memory Management, cuMemHostRegister; Data types, CUresult") {
  Pages pages(16384);
  CUDA_OK(cuMemHostRegister_v2, pages.at(), 16384, 0);
  CUDA_IS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2, pages.at(), 16384, 0);
  CUDA_IS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2, pages.at() + 4096, 4096,
          0);
  CUDA_OK(cuMemHostUnregister, pages.at());
}

RULE_TEST(HostMemoryTest, UnregisteringNeedsTheSameAddress,
          "cuMemHostUnregister takes the address that was registered; else it is "
          "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
          "CUDA Driver API 13.0, Memory Management, cuMemHostUnregister") {
  Pages pages(8192);
  CUDA_IS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister, pages.at());
  CUDA_OK(cuMemHostRegister_v2, pages.at(), 8192, 0);
  CUDA_OK(cuMemHostUnregister, pages.at());
  CUDA_IS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister, pages.at());
}

RULE_TEST(HostMemoryTest, UnregisteredPagesCanBeRegisteredAgain,
          "after cuMemHostUnregister the range is pageable again and may be registered anew",
          "CUDA Driver API 13.0, Memory Management, cuMemHostUnregister") {
  Pages pages(4096);
  for (int i = 0; i < 3; ++i) {
    CUDA_OK(cuMemHostRegister_v2, pages.at(), 4096, CU_MEMHOSTREGISTER_PORTABLE);
    CUDA_OK(cuMemHostUnregister, pages.at());
  }
}

RULE_TEST(HostMemoryTest, RegisteringNothingIsRefused,
          "cuMemHostRegister needs an address, a size and known flags",
          "CUDA Driver API 13.0, Memory Management, cuMemHostRegister (return values)") {
  Pages pages(4096);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2, nullptr, 4096, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2, pages.at(), 0, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2, pages.at(), 4096, 0x100);
}

RULE_TEST(HostMemoryTest, EveryContextReachesIt,
          "pinned memory is accessible to all contexts of devices with unified addressing",
          "CUDA Driver API 13.0, Memory Management, cuMemAllocHost; Unified Addressing") {
  void* host = Allocate(4096, 0);
  auto* word = static_cast<volatile uint64_t*>(host);
  *word = 3;
  std::thread([&] {
    CUcontext other = nullptr;
    CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
    CUdeviceptr device = 0;
    CUDA_OK(cuMemAlloc_v2, &device, 8);
    CUDA_OK(cuMemcpyHtoD_v2, device, host, 8);
    EXPECT_EQ(ReadWord(device), 3u);
    CUDA_OK(cuMemHostGetDevicePointer_v2, &device, host, 0);
    EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(host));
    CUDA_OK(cuCtxDestroy_v2, other);
  }).join();
  CUDA_OK(cuMemFreeHost, host);
}

}  // namespace
}  // namespace prorata::conformance
