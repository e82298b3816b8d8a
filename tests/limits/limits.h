#pragma once

// Pairs of tests of every function that takes device memory: one where the share's limit stops it,
// one where correct use within the limit is left alone. They run on a share, with the client
// library in front of the simulated driver, or of the machine's own (make gpu-check);
// test_limits.py starts agent and share. spec/cuda_memory.toml names the pair of each function, and
// codegen refuses a name that is not here.
//
//   TEST_F(LinearLimits, MemAllocRefused) {
//     LeaveRoom(4 * kMib);
//     CUdeviceptr address;
//     Refused([&] { return CUDA(cuMemAlloc_v2)(&address, 8 * kMib); });
//   }
//   TEST_F(LinearLimits, MemAllocCharged) {
//     CUdeviceptr address;
//     CUDA_OK(cuMemAlloc_v2, &address, 1);
//     EXPECT_TRUE(Charged(2 * kMib));
//     CUDA_OK(cuMemFree_v2, address);
//     EXPECT_TRUE(Charged(0));
//   }
//
// A test must hold on a GPU: it asks for granularities and overheads and does not assume those of
// the simulated machine, and skips by name what the device cannot do. What a share has used may be
// settled a moment after a call, so it is waited for, and never judged by how long it takes.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "generated/cuda_abi.h"

namespace prorata::limits {

inline constexpr uint64_t kMib = uint64_t{1} << 20;
// What linear memory is charged by.
inline constexpr uint64_t kSlab = 2 * kMib;

// The address of a function of the libcuda.so.1 that a program on a share gets.
void* DriverSymbol(const char* name);

// CUDA(cuMemAlloc_v2)(&address, 100)
#define CUDA(name) (reinterpret_cast<decltype(&name)>(::prorata::limits::DriverSymbol(#name)))
// The same, and it must succeed.
#define CUDA_OK(name, ...) ASSERT_EQ(CUDA(name)(__VA_ARGS__), CUDA_SUCCESS) << #name

// First in a test of what the driver under test cannot do: names it.
#define SKIP_UNLESS(condition, what) \
  if (!(condition)) GTEST_SKIP() << "this driver or device has no " what

// Whether the driver under test is the machine's own.
bool OnRealGpu();

// The image with the kernels of tests/conformance/host_kernels.c, and its bytes.
std::string KernelImage();
std::string KernelImageBytes();

// The primary context of device 0 is current, and the share is otherwise empty: test_limits.py
// gives every suite a share of its own. At the end of a test all that it charged must be given
// back.
class LimitTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // What cuMemGetInfo says: of the share.
  static uint64_t Free();
  static uint64_t Total();
  // Waits until the free memory is so many bytes; false after a minute.
  static bool FreeBecomes(uint64_t bytes);
  // Waits until so many bytes more are charged than when the test began (and room was left).
  [[nodiscard]] bool Charged(uint64_t bytes) const;

  // Takes memory until at least `bytes`, and less than two slabs more, are left.
  void LeaveRoom(uint64_t bytes);
  void GiveRoomBack();

  // Calls, and expects out-of-memory and that nothing is charged for it.
  template <typename Call>
  void Refused(Call&& call) {
    const uint64_t before = Free();
    EXPECT_EQ(call(), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_TRUE(FreeBecomes(before)) << "free: " << Free() << ", before: " << before;
  }

  static bool Has(CUdevice_attribute attribute);

  CUdevice device_ = 0;
  CUcontext ctx_ = nullptr;  // the primary context

 private:
  uint64_t free_at_start_ = 0;
  std::vector<CUdeviceptr> fill_;
  uint64_t filled_bytes_ = 0;
};

}  // namespace prorata::limits
