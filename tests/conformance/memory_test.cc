// Plain device memory: what cuMemAlloc gives, what cuMemFree takes, what cuMemGetInfo says.

#include <algorithm>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr uint64_t kMemorySlab = 2 * kMiB;

using MemoryTest = DriverTest;

RULE_TEST(MemoryTest, AllocatingNothingIsRefused,
          "cuMemAlloc of 0 bytes is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Memory Management, cuMemAlloc") {
  CUdeviceptr address = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2, &address, 0);
}

RULE_TEST(MemoryTest, TheAddressNeedsAPlace,
          "cuMemAlloc without a place for the address is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Memory Management, cuMemAlloc (return values)") {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2, nullptr, 1);
}

RULE_TEST(MemoryTest, MoreThanThereIsIsOutOfMemory,
          "a request beyond the device's memory is CUDA_ERROR_OUT_OF_MEMORY and takes nothing",
          "CUDA Driver API 13.0, Memory Management, cuMemAlloc; Data types, CUresult") {
  size_t free_bytes = 0;
  size_t total = 0;
  CUDA_OK(cuMemGetInfo_v2, &free_bytes, &total);
  CUdeviceptr address = 0;
  CUDA_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2, &address, total + kMiB);
  CUDA_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2, &address, uint64_t{1} << 60);
  EXPECT_EQ(FreeBytes(), free_bytes);
}

RULE_TEST(MemoryTest, AddressesAreAlignedTo256Bytes,
          "any address returned by a memory allocation routine is aligned to at least 256 bytes",
          "CUDA C++ Programming Guide 13.0, 8.3.2 Device Memory Accesses (Size and Alignment)") {
  for (size_t bytes : {1, 3, 100, 257, 511, 4097, 70'001}) {
    CUdeviceptr address = 0;
    CUDA_OK(cuMemAlloc_v2, &address, bytes);
    EXPECT_EQ(address % 256, 0u) << bytes;
    EXPECT_NE(address, 0u);
  }
}

RULE_TEST(MemoryTest, LivingAllocationsDoNotOverlap,
          "the memory of an allocation is its own as long as it is not freed",
          "CUDA Driver API 13.0, Memory Management, cuMemAlloc") {
  constexpr size_t kMemorySizes[] = {1, 300, 512, 5000, 600ULL * 1024, 3 * kMiB};
  std::vector<std::pair<CUdeviceptr, size_t>> ranges;
  for (int round = 0; round < 3; ++round) {
    for (size_t bytes : kMemorySizes) {
      CUdeviceptr address = 0;
      CUDA_OK(cuMemAlloc_v2, &address, bytes);
      ranges.emplace_back(address, bytes);
    }
    if (round == 0) {  // holes, for the next to go into
      for (int i : {4, 2, 0}) {
        CUDA_OK(cuMemFree_v2, ranges[i].first);
        ranges.erase(ranges.begin() + i);
      }
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    EXPECT_LE(ranges[i - 1].first + ranges[i - 1].second, ranges[i].first);
  }
}

RULE_TEST(MemoryTest, WhatIsWrittenStaysWhereItWas,
          "neighbouring allocations keep their own contents",
          "CUDA Driver API 13.0, Memory Management, cuMemAlloc") {
  std::vector<CUdeviceptr> words;
  for (uint64_t i = 0; i < 50; ++i) words.push_back(NewWord(i * i));
  for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(ReadWord(words[i]), i * i);
}

RULE_TEST(MemoryTest, FreeingTwiceIsRefused,
          "cuMemFree takes only an address that an allocation returned and nobody freed since",
          "CUDA Driver API 13.0, Memory Management, cuMemFree") {
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAlloc_v2, &address, 4096);
  CUDA_OK(cuMemFree_v2, address);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, address);
}

RULE_TEST(MemoryTest, FreeingTheMiddleIsRefused,
          "an address inside an allocation was not returned by one: cuMemFree refuses it",
          "CUDA Driver API 13.0, Memory Management, cuMemFree") {
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAlloc_v2, &address, 4 * kMiB);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, address + 512);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, address + kMemorySlab);
  CUDA_OK(cuMemFree_v2, address);
}

RULE_TEST(MemoryTest, FreeingWhatWasNeverAllocatedIsRefused,
          "an invented address is CUDA_ERROR_INVALID_VALUE to cuMemFree",
          "CUDA Driver API 13.0, Memory Management, cuMemFree") {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, 0x1234);
}

RULE_TEST(MemoryTest, FreeingNullDoesNothing,
          "cuMemFree of the null address succeeds and does nothing",
          "CUDA Runtime API 13.0, Memory Management, cudaFree: if devPtr is 0, no operation is "
          "performed (it is cuMemFree)") {
  const uint64_t before = FreeBytes();
  CUDA_OK(cuMemFree_v2, 0);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(MemoryTest, PinnedHostMemoryIsNotFreedAsDeviceMemory,
          "cuMemFree refuses memory of cuMemAllocHost",
          "CUDA Driver API 13.0, Memory Management, cuMemFree (which allocators it serves)") {
  void* host = nullptr;
  CUDA_OK(cuMemAllocHost_v2, &host, 4096);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, reinterpret_cast<CUdeviceptr>(host));
  CUDA_OK(cuMemFreeHost, host);
}

RULE_TEST(MemoryTest, FreeMemoryMovesByWhatWasTaken,
          "cuMemGetInfo's free memory falls by at least what was allocated and comes back",
          "CUDA Driver API 13.0, Memory Management, cuMemGetInfo") {
  const uint64_t before = FreeBytes();
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAlloc_v2, &address, 64 * kMiB);
  const uint64_t during = FreeBytes();
  EXPECT_LE(during, before - 64 * kMiB);
  EXPECT_GE(during, before - 66 * kMiB);
  CUDA_OK(cuMemFree_v2, address);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(MemoryTest, TheTotalIsTheDevicesAndDoesNotMove,
          "cuMemGetInfo's total is the context's device's, whatever is allocated",
          "CUDA Driver API 13.0, Memory Management, cuMemGetInfo") {
  size_t free_bytes = 0;
  size_t before = 0;
  size_t after = 0;
  size_t device = 0;
  CUdeviceptr address = 0;
  CUDA_OK(cuMemGetInfo_v2, &free_bytes, &before);
  CUDA_OK(cuMemAlloc_v2, &address, 64 * kMiB);
  CUDA_OK(cuMemGetInfo_v2, &free_bytes, &after);
  CUDA_OK(cuDeviceTotalMem_v2, &device, 0);
  EXPECT_EQ(before, after);
  EXPECT_EQ(before, device);
  EXPECT_LE(free_bytes, before);
}

RULE_TEST(MemoryTest, TheDeviceCanBeFilledAndEmptied,
          "allocations succeed until the memory is gone, then fail; what is freed can be had again",
          "CUDA Driver API 13.0, Memory Management, cuMemAlloc") {
  const uint64_t before = FreeBytes();
  const uint64_t each = before / 16 / kMemorySlab * kMemorySlab;
  std::vector<CUdeviceptr> all;
  CUdeviceptr address = 0;
  CUresult result = CUDA_SUCCESS;
  while (all.size() < 20 && (result = CUDA(cuMemAlloc_v2)(&address, each)) == CUDA_SUCCESS) {
    all.push_back(address);
  }
  EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_GE(all.size(), 15u);
  EXPECT_LE(all.size(), 16u);
  for (CUdeviceptr each_address : all) CUDA_OK(cuMemFree_v2, each_address);
  EXPECT_EQ(FreeBytes(), before);
  CUDA_OK(cuMemAlloc_v2, &address, each);
  CUDA_OK(cuMemFree_v2, address);
}

RULE_TEST(MemoryTest, FreeingWaitsForTheWorkThatUsesIt,
          "cuMemFree of plain memory is not done before the work that was submitted",
          "CUDA Driver API 13.0, Memory Management, cuMemFree (implicit synchronization); as "
          "observed, always") {
  CUstream stream = NewStream();
  const CUdeviceptr word = NewWord(1);
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAlloc_v2, &address, 4 * kMiB);
  Kernel("step");
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
  ASSERT_EQ(Step(stream, word, 1, 1, 1000), CUDA_SUCCESS);
  CUresult freed = CUDA_ERROR_UNKNOWN, left = CUDA_ERROR_UNKNOWN;
  const auto free = [&] {
    freed = CUDA(cuMemFree_v2)(address);
    left = CUDA(cuStreamQuery)(stream);
  };
  EXPECT_TRUE(Waits(free, [&] { gate.Open(); })) << "cuMemFree did not wait for the stream";
  EXPECT_EQ(freed, CUDA_SUCCESS);
  EXPECT_EQ(left, CUDA_SUCCESS) << "cuMemFree did not wait for all of it";
  EXPECT_TRUE(Finishes(stream));
}

RULE_TEST(MemoryTest, SmallAllocationsShareASlab,
          "small allocations share 2 MiB of the device, and give it back when the last is freed",
          "the driver's granularity; docs/reference/simulated-gpu.md, Settings, slab") {
  SIMULATED_ONLY("it assumes the simulated heap's slabs");
  const uint64_t before = FreeBytes();
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  CUDA_OK(cuMemAlloc_v2, &a, 100);
  EXPECT_EQ(FreeBytes(), before - kMemorySlab);
  CUDA_OK(cuMemAlloc_v2, &b, 512ULL * 1024);
  EXPECT_EQ(FreeBytes(), before - kMemorySlab);
  EXPECT_EQ(a / kMemorySlab, b / kMemorySlab);
  CUDA_OK(cuMemFree_v2, a);
  EXPECT_EQ(FreeBytes(), before - kMemorySlab);
  CUDA_OK(cuMemFree_v2, b);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(MemoryTest, LargeAllocationsHaveSlabsOfTheirOwn,
          "a large allocation takes whole slabs of 2 MiB",
          "the driver's granularity; docs/reference/simulated-gpu.md, Settings, slab") {
  SIMULATED_ONLY("it assumes the simulated heap's slabs");
  const uint64_t before = FreeBytes();
  CUdeviceptr a = 0;
  CUDA_OK(cuMemAlloc_v2, &a, kMemorySlab + 1);
  EXPECT_EQ(a % kMemorySlab, 0u);
  EXPECT_EQ(FreeBytes(), before - 2 * kMemorySlab);
  CUDA_OK(cuMemFree_v2, a);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(MemoryTest, PitchesAreAlignedAndWideEnough,
          "cuMemAllocPitch pads rows so that each is aligned, and returns the padded width",
          "CUDA Driver API 13.0, Memory Management, cuMemAllocPitch") {
  int alignment = 0;
  CUDA_OK(cuDeviceGetAttribute, &alignment, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 0);
  for (size_t width : {1, 100, 512, 513, 5000}) {
    CUdeviceptr address = 0;
    size_t pitch = 0;
    CUDA_OK(cuMemAllocPitch_v2, &address, &pitch, width, 10, 4);
    EXPECT_GE(pitch, width);
    EXPECT_EQ(pitch % static_cast<size_t>(alignment), 0u);
    CUDA_OK(cuMemsetD2D8_v2, address, pitch, 1, width, 10);
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUDA_OK(cuMemGetAddressRange_v2, &base, &bytes, address);
    EXPECT_GE(bytes, pitch * 9 + width);
    CUDA_OK(cuMemFree_v2, address);
  }
}

RULE_TEST(MemoryTest, PitchElementsAre4Or8Or16Bytes,
          "cuMemAllocPitch's element size may be 4, 8 or 16, nothing else",
          "CUDA Driver API 13.0, Memory Management, cuMemAllocPitch") {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  for (unsigned bytes : {4u, 8u, 16u}) {
    CUDA_OK(cuMemAllocPitch_v2, &address, &pitch, 100, 10, bytes);
  }
  for (unsigned bytes : {0u, 1u, 2u, 12u, 32u}) {
    CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2, &address, &pitch, 100, 10, bytes);
  }
}

RULE_TEST(MemoryTest, APitchOfNothingIsRefused, "cuMemAllocPitch needs a width and a height",
          "CUDA Driver API 13.0, Memory Management, cuMemAllocPitch (return values)") {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2, &address, &pitch, 0, 10, 4);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2, &address, &pitch, 100, 0, 4);
}

RULE_TEST(MemoryTest, AnAddressKnowsItsAllocation,
          "cuMemGetAddressRange gives base and size of the allocation around an address",
          "CUDA Driver API 13.0, Memory Management, cuMemGetAddressRange") {
  CUdeviceptr device = 0;
  CUDA_OK(cuMemAlloc_v2, &device, 1000);
  CUdeviceptr base = 0;
  size_t size = 0;
  CUDA_OK(cuMemGetAddressRange_v2, &base, &size, device + 999);
  EXPECT_EQ(base, device);
  EXPECT_EQ(size, 1000u);
  base = 0;
  CUDA_OK(cuMemGetAddressRange_v2, &base, nullptr, device);  // either may be null
  EXPECT_EQ(base, device);
  CUDA_OK(cuMemGetAddressRange_v2, nullptr, &size, device);
}

RULE_TEST(MemoryTest, AnAddressOfNothingHasNoRange,
          "cuMemGetAddressRange of an address in no allocation is CUDA_ERROR_NOT_FOUND",
          "CUDA Driver API 13.0, Memory Management, cuMemGetAddressRange (return values)") {
  CUdeviceptr device = 0;
  CUdeviceptr base = 0;
  CUDA_OK(cuMemAlloc_v2, &device, 8 * kMiB);
  CUDA_OK(cuMemFree_v2, device);
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2, &base, nullptr, device);
}

}  // namespace
}  // namespace prorata::conformance
