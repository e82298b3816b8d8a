#include "driver.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>

namespace prorata::simgpu {
namespace {

void* g_library = nullptr;

// One machine for the process, in a folder that goes with it.
class MachineEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    char folder[] = "/tmp/prorata-simgpu-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    setenv("PRORATA_SIM_STATE", folder, 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    g_library = dlopen(SIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(g_library, nullptr) << dlerror();
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

 private:
  std::string folder_;
};

const auto* const g_environment =
    ::testing::AddGlobalTestEnvironment(new MachineEnvironment);  // gtest owns it

}  // namespace

void* DriverSymbol(const char* name) {
  void* symbol = dlsym(g_library, name);
  if (!symbol) std::fprintf(stderr, "the simulated driver does not export %s\n", name);
  return symbol;
}

void DriverTest::SetUp() {
  CUDA_OK(cuInit, 0);
  CUDA_OK(cuCtxCreate_v2, &ctx_, 0, 0);
}

void DriverTest::TearDown() {
  if (ctx_) {
    CUDA_OK(cuCtxDestroy_v2, ctx_);
  }
}

uint64_t DriverTest::FreeBytes() {
  size_t free_bytes = 0;
  size_t total = 0;
  EXPECT_EQ(CUDA(cuMemGetInfo_v2)(&free_bytes, &total), CUDA_SUCCESS);
  return free_bytes;
}

CUfunction DriverTest::Kernel(const char* name) {
  if (!module_) {
    EXPECT_EQ(CUDA(cuModuleLoad)(&module_, HOST_KERNELS), CUDA_SUCCESS);
  }
  CUfunction function = nullptr;
  EXPECT_EQ(CUDA(cuModuleGetFunction)(&function, module_, name), CUDA_SUCCESS) << name;
  return function;
}

CUresult DriverTest::Step(CUstream stream, CUdeviceptr word, uint64_t factor, uint64_t term,
                          uint64_t ns) {
  void* params[] = {&word, &factor, &term, &ns};
  return CUDA(cuLaunchKernel)(Kernel("step"), 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
}

uint64_t DriverTest::ReadWord(CUdeviceptr word) {
  uint64_t value = 0;
  EXPECT_EQ(CUDA(cuMemcpyDtoH_v2)(&value, word, sizeof(value)), CUDA_SUCCESS);
  return value;
}

CUdeviceptr DriverTest::NewWord(uint64_t value) {
  CUdeviceptr word = 0;
  EXPECT_EQ(CUDA(cuMemAlloc_v2)(&word, sizeof(value)), CUDA_SUCCESS);
  EXPECT_EQ(CUDA(cuMemcpyHtoD_v2)(word, &value, sizeof(value)), CUDA_SUCCESS);
  return word;
}

}  // namespace prorata::simgpu
