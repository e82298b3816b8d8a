#include "limits.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>

namespace prorata::limits {
namespace {

constexpr auto kDeadline = std::chrono::seconds(60);

std::filesystem::path ProgramFolder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

void* Library() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}

}  // namespace

void* DriverSymbol(const char* name) {
  void* symbol = dlsym(Library(), name);
  if (!symbol) std::fprintf(stderr, "libcuda.so.1 does not export %s\n", name);
  return symbol;
}

bool OnRealGpu() {
  const char* gpu = getenv("PRORATA_TEST_GPU");
  return gpu != nullptr && std::string_view(gpu) == "real";
}

std::string KernelImage() {
  return ProgramFolder() / (OnRealGpu() ? "conformance_kernels.ptx" : "conformance_kernels.so");
}

std::string KernelImageBytes() {
  std::ifstream file(KernelImage(), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void LimitTest::SetUp() {
  CUDA_OK(cuInit, 0);
  CUDA_OK(cuDeviceGet, &device_, 0);
  CUDA_OK(cuDevicePrimaryCtxRetain, &ctx_, device_);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  free_at_start_ = Free();
}

void LimitTest::TearDown() {
  if (ctx_ == nullptr) return;
  GiveRoomBack();
  CUDA_OK(cuCtxSetCurrent, ctx_);
  EXPECT_TRUE(Charged(0)) << "the test left " << free_at_start_ - Free() << " bytes charged";
  CUDA_OK(cuDevicePrimaryCtxRelease_v2, device_);
}

uint64_t LimitTest::Free() {
  size_t free_bytes = 0, total = 0;
  EXPECT_EQ(CUDA(cuMemGetInfo_v2)(&free_bytes, &total), CUDA_SUCCESS);
  return free_bytes;
}

uint64_t LimitTest::Total() {
  size_t free_bytes = 0, total = 0;
  EXPECT_EQ(CUDA(cuMemGetInfo_v2)(&free_bytes, &total), CUDA_SUCCESS);
  return total;
}

bool LimitTest::FreeBecomes(uint64_t bytes) {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (Free() != bytes) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool LimitTest::Charged(uint64_t bytes) const {
  return FreeBecomes(free_at_start_ - filled_bytes_ - bytes);
}

void LimitTest::LeaveRoom(uint64_t bytes) {
  const uint64_t free_bytes = Free();
  ASSERT_GT(free_bytes, bytes) << "the share is too small for this test";
  const uint64_t fill = (free_bytes - bytes) / kSlab * kSlab;
  if (fill == 0) return;
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAlloc_v2, &address, fill);
  fill_.push_back(address);
  filled_bytes_ += free_bytes - Free();
  ASSERT_GE(Free(), bytes);
  ASSERT_LT(Free(), bytes + 2 * kSlab);
}

void LimitTest::GiveRoomBack() {
  for (CUdeviceptr address : fill_) {
    CUDA_OK(cuMemFree_v2, address);
  }
  fill_.clear();
  filled_bytes_ = 0;
}

bool LimitTest::Has(CUdevice_attribute attribute) {
  int value = 0;
  return CUDA(cuDeviceGetAttribute)(&value, attribute, 0) == CUDA_SUCCESS && value != 0;
}

}  // namespace prorata::limits
