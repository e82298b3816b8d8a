// Modules: loading images, and what is found in them.

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kPtx[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 4 .u32 counter[4];\n"
    ".visible .entry spin(.param .u64 p0, .param .u32 p1) { ret; }\n"
    ".visible .entry turn() { ret; }\n";

constexpr char kLoad[] = "CUDA Driver API 13.0, Module Management, cuModuleLoadData";
constexpr char kGetFunction[] = "CUDA Driver API 13.0, Module Management, cuModuleGetFunction";
constexpr char kGetGlobal[] = "CUDA Driver API 13.0, Module Management, cuModuleGetGlobal";

class ModuleTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    CUDA_OK(cuModuleLoadData, &ptx_, kPtx);
  }
  CUfunction Function(const char* name) {
    CUfunction function = nullptr;
    EXPECT_EQ(CUDA(cuModuleGetFunction)(&function, ptx_, name), CUDA_SUCCESS);
    return function;
  }
  CUmodule ptx_ = nullptr;
};

RULE_TEST(ModuleTest, PtxIsLoadedFromMemory, "an image may be null-terminated PTX", kLoad) {
  CUDA_OK(cuLaunchKernel, Function("turn"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  CUDA_OK(cuCtxSynchronize);
}

RULE_TEST(ModuleTest, ImagesAreLoadedFromFiles, "cuModuleLoad reads the image from a file",
          "CUDA Driver API 13.0, Module Management, cuModuleLoad") {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUDA_OK(cuModuleLoad, &module, KernelImage().c_str());
  CUDA_OK(cuModuleGetFunction, &function, module, "step");
  CUDA_OK(cuModuleUnload, module);
}

RULE_TEST(ModuleTest, AFilesBytesLoadFromMemory,
          "an image read from its file by the program loads as well", kLoad) {
  std::ifstream file(KernelImage(), std::ios::binary);
  std::vector<char> image((std::istreambuf_iterator<char>(file)), {});
  image.push_back('\0');
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUDA_OK(cuModuleLoadData, &module, image.data());
  CUDA_OK(cuModuleGetFunction, &function, module, "step");
}

RULE_TEST(ModuleTest, AMissingFileIsNotFound,
          "cuModuleLoad of a file that is not there is CUDA_ERROR_FILE_NOT_FOUND",
          "CUDA Driver API 13.0, Module Management, cuModuleLoad (return values)") {
  CUmodule module = nullptr;
  CUDA_IS(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad, &module, "/nonexistent/image.cubin");
}

RULE_TEST(ModuleTest, WhatIsNoImageIsRefused,
          "bytes that are no image are CUDA_ERROR_INVALID_IMAGE or CUDA_ERROR_INVALID_PTX",
          "CUDA Driver API 13.0, Data types, CUresult; cuModuleLoadData (return values)") {
  CUmodule module = nullptr;
  const CUresult result = CUDA(cuModuleLoadData)(&module, "this is not an image at all");
  EXPECT_TRUE(result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_INVALID_PTX) << result;
  EXPECT_NE(CUDA(cuModuleLoadData)(&module, ""), CUDA_SUCCESS);
}

RULE_TEST(ModuleTest, NothingIsNoImage,
          "a NULL image, or no place for the module, is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Module Management, cuModuleLoadData (return values)") {
  CUmodule module = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData, &module, nullptr);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData, nullptr, kPtx);
}

RULE_TEST(ModuleTest, AHostsObjectIsNoImage,
          "an ELF object of another machine has no binary for the GPU",
          "CUDA Driver API 13.0, Data types, CUresult, CUDA_ERROR_NO_BINARY_FOR_GPU and "
          "CUDA_ERROR_INVALID_IMAGE") {
  std::vector<char> elf(4096);
  const unsigned char head[] = {0x7f, 'E', 'L', 'F', 2, 1, 1, 0,   0, 0, 0,
                                0,    0,   0,   0,   0, 3, 0, 183, 0, 1, 0};  // AArch64
  std::memcpy(elf.data(), head, sizeof(head));
  CUmodule module = nullptr;
  EXPECT_NE(CUDA(cuModuleLoadData)(&module, elf.data()), CUDA_SUCCESS);
}

RULE_TEST(ModuleTest, LoadingWithOptionsFillsTheLogs,
          "cuModuleLoadDataEx takes options for the compiler, and gives the sizes of its logs",
          "CUDA Driver API 13.0, Module Management, cuModuleLoadDataEx; Data types, CUjit_option") {
  char info[256] = "";
  char error[256] = "";
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {info, reinterpret_cast<void*>(sizeof(info)), error,
                    reinterpret_cast<void*>(sizeof(error))};
  CUmodule module = nullptr;
  CUDA_OK(cuModuleLoadDataEx, &module, kPtx, 4, options, values);
  EXPECT_LE(reinterpret_cast<size_t>(values[1]), sizeof(info));
  EXPECT_LE(reinterpret_cast<size_t>(values[3]), sizeof(error));
}

RULE_TEST(ModuleTest, AFunctionHasOneHandle,
          "the same name gives the same function, another name another", kGetFunction) {
  EXPECT_EQ(Function("spin"), Function("spin"));
  EXPECT_NE(Function("spin"), Function("turn"));
}

RULE_TEST(ModuleTest, AnUnknownFunctionIsNotFound,
          "a function that the module does not have is CUDA_ERROR_NOT_FOUND", kGetFunction) {
  CUfunction function = nullptr;
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction, &function, ptx_, "spin2");
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction, &function, ptx_, "counter");
}

RULE_TEST(ModuleTest, FunctionsAreCountedAndListed,
          "cuModuleEnumerateFunctions gives each of the cuModuleGetFunctionCount functions",
          "CUDA Driver API 13.0, Module Management, cuModuleEnumerateFunctions") {
  unsigned count = 0;
  CUDA_OK(cuModuleGetFunctionCount, &count, ptx_);
  ASSERT_EQ(count, 2u);
  CUfunction functions[2] = {};
  CUDA_OK(cuModuleEnumerateFunctions, functions, 2, ptx_);
  std::set<std::string> names;
  for (CUfunction function : functions) {
    const char* name = nullptr;
    CUDA_OK(cuFuncGetName, &name, function);
    names.insert(name);
  }
  EXPECT_EQ(names, (std::set<std::string>{"spin", "turn"}));
}

RULE_TEST(ModuleTest, AGlobalHasAnAddressAndASize,
          "cuModuleGetGlobal gives the global's address, the same each time, and its size",
          kGetGlobal) {
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  size_t bytes = 0;
  CUDA_OK(cuModuleGetGlobal_v2, &a, &bytes, ptx_, "counter");
  CUDA_OK(cuModuleGetGlobal_v2, &b, nullptr, ptx_, "counter");
  EXPECT_EQ(a, b);
  EXPECT_EQ(bytes, 16u);
  bytes = 0;
  CUDA_OK(cuModuleGetGlobal_v2, nullptr, &bytes, ptx_, "counter");
  EXPECT_EQ(bytes, 16u);
}

RULE_TEST(ModuleTest, AGlobalIsMemory, "a global holds what is copied to it", kGetGlobal) {
  CUdeviceptr address = 0;
  uint32_t values[4] = {1, 2, 3, 4};
  uint32_t back[4] = {};
  CUDA_OK(cuModuleGetGlobal_v2, &address, nullptr, ptx_, "counter");
  CUDA_OK(cuMemcpyHtoD_v2, address, values, 16);
  CUDA_OK(cuMemcpyDtoH_v2, back, address, 16);
  EXPECT_EQ(std::memcmp(values, back, 16), 0);
}

RULE_TEST(ModuleTest, AnUnknownGlobalIsNotFound,
          "a global that the module does not have is CUDA_ERROR_NOT_FOUND", kGetGlobal) {
  CUdeviceptr address = 0;
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2, &address, nullptr, ptx_, "none");
  CUDA_IS(ButOnGpu(CUDA_ERROR_NOT_FOUND, CUDA_ERROR_INVALID_VALUE), cuModuleGetGlobal_v2, &address,
          nullptr, ptx_, "spin");  // a kernel
}

RULE_TEST(ModuleTest, ModulesHaveTheirOwnGlobals,
          "an image that is loaded twice has its globals twice", kGetGlobal) {
  CUmodule again = nullptr;
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  CUDA_OK(cuModuleLoadData, &again, kPtx);
  CUDA_OK(cuModuleGetGlobal_v2, &a, nullptr, ptx_, "counter");
  CUDA_OK(cuModuleGetGlobal_v2, &b, nullptr, again, "counter");
  EXPECT_NE(a, b);
}

RULE_TEST(ModuleTest, UnloadingGivesTheGlobalsBack,
          "after cuModuleUnload the module's memory belongs to nobody",
          "CUDA Driver API 13.0, Module Management, cuModuleUnload") {
  CUdeviceptr address = 0;
  CUDA_OK(cuModuleGetGlobal_v2, &address, nullptr, ptx_, "counter");
  CUDA_OK(cuModuleUnload, ptx_);
  uint32_t value = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2, &value, address, 4);
}

RULE_TEST(ModuleTest, AnUnloadedModuleIsNoHandle,
          "an unloaded module and its functions are CUDA_ERROR_INVALID_HANDLE",
          "CUDA Driver API 13.0, Module Management, cuModuleUnload (return values)") {
  SIMULATED_ONLY("a stale handle is undefined behaviour on a GPU");
  CUfunction function = Function("turn");
  CUDA_OK(cuModuleUnload, ptx_);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload, ptx_);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction, &function, ptx_, "turn");
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, nullptr,
          nullptr, nullptr);
}

RULE_TEST(ModuleTest, LoadingIsLazyUnlessItIsAskedToBeEager,
          "CUDA_MODULE_LOADING decides what cuModuleGetLoadingMode tells; lazy is the default",
          "CUDA C++ Programming Guide 13.0, 22.1 Lazy Loading; cuModuleGetLoadingMode") {
  if (!InFreshProcess()) return;
  unsetenv("CUDA_MODULE_LOADING");
  CUDA_OK(cuInit, 0);
  CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
  CUDA_OK(cuModuleGetLoadingMode, &mode);
  EXPECT_EQ(mode, ButOnGpu(CU_MODULE_LAZY_LOADING, CU_MODULE_EAGER_LOADING));
}

}  // namespace
}  // namespace prorata::conformance
