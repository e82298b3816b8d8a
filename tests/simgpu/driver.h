#pragma once

// The simulated driver as the tests load it: by path, in a machine of their own.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "generated/cuda_abi.h"

namespace prorata::simgpu {

// The address of an exported function, and nothing else: so that a test calls what a program would.
void* DriverSymbol(const char* name);

// CUDA(cuMemAlloc_v2)(&address, 100)
#define CUDA(name) (reinterpret_cast<decltype(&name)>(::prorata::simgpu::DriverSymbol(#name)))

// The same, and it must succeed.
#define CUDA_OK(name, ...) ASSERT_EQ(CUDA(name)(__VA_ARGS__), CUDA_SUCCESS) << #name
#define CUDA_IS(result, name, ...) EXPECT_EQ(CUDA(name)(__VA_ARGS__), result) << #name

// A context on device 0, current. Every test gets its own.
class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  uint64_t FreeBytes();
  // A kernel of tests/simgpu/host_kernels.c.
  CUfunction Kernel(const char* name);
  // Launches `step`: *word = *word * factor + term, taking `ns` of device time.
  CUresult Step(CUstream stream, CUdeviceptr word, uint64_t factor, uint64_t term, uint64_t ns);
  uint64_t ReadWord(CUdeviceptr word);
  CUdeviceptr NewWord(uint64_t value);

  CUcontext ctx_ = nullptr;
  CUmodule module_ = nullptr;
};

}  // namespace prorata::simgpu
