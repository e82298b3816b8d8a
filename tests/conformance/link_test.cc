// The JIT linker.

#include <string>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kLinkedPtx[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 words[64];
.visible .entry linked(.param .u64 linked_param_0) { ret; }
)";
constexpr char kMore[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry also_linked() { ret; }
)";

class LinkTest : public DriverTest {
 protected:
  CUlinkState NewState() {
    CUlinkState state = nullptr;
    EXPECT_EQ(CUDA(cuLinkCreate_v2)(0, nullptr, nullptr, &state), CUDA_SUCCESS);
    return state;
  }
  static CUresult AddPtx(CUlinkState state, const char* text) {
    std::string copy = text;
    return CUDA(cuLinkAddData_v2)(state, CU_JIT_INPUT_PTX, copy.data(), copy.size() + 1, "ptx", 0,
                                  nullptr, nullptr);
  }
};

RULE_TEST(LinkTest, WhatIsLinkedCanBeLoaded,
          "cuLinkComplete gives an image that has what was added, and that cuModuleLoadData takes",
          "CUDA Driver API, Module Management, cuLinkComplete") {
  CUlinkState state = NewState();
  ASSERT_EQ(AddPtx(state, kLinkedPtx), CUDA_SUCCESS);
  ASSERT_EQ(AddPtx(state, kMore), CUDA_SUCCESS);
  void* image = nullptr;
  size_t bytes = 0;
  CUDA_OK(cuLinkComplete, state, &image, &bytes);
  EXPECT_GT(bytes, 0u);
  CUmodule module = nullptr;
  CUDA_OK(cuModuleLoadData, &module, image);
  CUDA_OK(cuLinkDestroy, state);  // the module does not need it any more
  CUfunction function = nullptr;
  CUDA_OK(cuModuleGetFunction, &function, module, "linked");
  CUdeviceptr argument = 0;
  void* arguments[] = {&argument};
  CUDA_OK(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
  CUDA_OK(cuModuleGetFunction, &function, module, "also_linked");
  CUdeviceptr words = 0;
  CUDA_OK(cuModuleGetGlobal_v2, &words, &bytes, module, "words");
  EXPECT_EQ(bytes, 64u);
  CUDA_OK(cuCtxSynchronize);
}

RULE_TEST(LinkTest, WhatIsNoPtxIsRefused, "cuLinkAddData refuses text that is not PTX",
          "CUDA Driver API, Module Management, cuLinkAddData") {
  CUlinkState state = NewState();
  EXPECT_NE(AddPtx(state, "this is not PTX"), CUDA_SUCCESS);
  CUDA_OK(cuLinkDestroy, state);
}

RULE_TEST(LinkTest, AFileThatIsNotThereIsSaidSo,
          "cuLinkAddFile says CUDA_ERROR_FILE_NOT_FOUND for a file that it cannot open",
          "CUDA Driver API, Module Management, cuLinkAddFile") {
  CUlinkState state = NewState();
  CUDA_IS(CUDA_ERROR_FILE_NOT_FOUND, cuLinkAddFile_v2, state, CU_JIT_INPUT_PTX,
          "/nowhere/at/all.ptx", 0, nullptr, nullptr);
  CUDA_OK(cuLinkDestroy, state);
}

}  // namespace
}  // namespace prorata::conformance
