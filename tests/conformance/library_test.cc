// Libraries: images of the process, and their kernels in every context.

#include <set>
#include <string>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kLibraryPtx[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 4 .u32 counter[4];\n"
    ".visible .entry spin(.param .u64 p0, .param .u32 p1) { ret; }\n"
    ".visible .entry turn() { ret; }\n";

class LibraryTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    CUDA_OK(cuLibraryLoadData, &library_, kLibraryPtx, nullptr, nullptr, 0, nullptr, nullptr, 0);
  }
  void TearDown() override {
    if (library_) {
      CUDA_OK(cuLibraryUnload, library_);
    }
    DriverTest::TearDown();
  }
  CUkernel Get(const char* name) {
    CUkernel kernel = nullptr;
    EXPECT_EQ(CUDA(cuLibraryGetKernel)(&kernel, library_, name), CUDA_SUCCESS);
    return kernel;
  }
  CUlibrary library_ = nullptr;
};

RULE_TEST(LibraryTest, ALibraryNeedsNoContext, "a library is loaded without a context",
          "CUDA Driver API 13.0, Library Management, cuLibraryLoadData (it does not return "
          "CUDA_ERROR_INVALID_CONTEXT)") {
  CUDA_OK(cuCtxPopCurrent_v2, nullptr);
  CUlibrary library = nullptr;
  CUDA_OK(cuLibraryLoadData, &library, kLibraryPtx, nullptr, nullptr, 0, nullptr, nullptr, 0);
  CUkernel kernel = nullptr;
  CUDA_OK(cuLibraryGetKernel, &kernel, library, "turn");
  CUDA_OK(cuLibraryUnload, library);
  CUDA_OK(cuCtxPushCurrent_v2, ctx_);
}

RULE_TEST(LibraryTest, AKernelIsFoundByItsName,
          "cuLibraryGetKernel finds a kernel, and is CUDA_ERROR_NOT_FOUND otherwise",
          "CUDA Driver API 13.0, Library Management, cuLibraryGetKernel") {
  const char* name = nullptr;
  CUDA_OK(cuKernelGetName, &name, Get("spin"));
  EXPECT_STREQ(name, "spin");
  CUkernel kernel = nullptr;
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel, &kernel, library_, "spin2");
}

RULE_TEST(LibraryTest, KernelsAreLaunchedAsFunctions,
          "a CUkernel may be passed, cast, where a CUfunction is launched; the context is the "
          "stream's or the current one",
          "CUDA Driver API 13.0, Execution Control, cuLaunchKernel") {
  CUlibrary library = nullptr;
  CUDA_OK(cuLibraryLoadFromFile, &library, KernelImage().c_str(), nullptr, nullptr, 0, nullptr,
          nullptr, 0);
  CUkernel kernel = nullptr;
  CUDA_OK(cuLibraryGetKernel, &kernel, library, "step");
  CUdeviceptr word = NewWord(2);
  uint64_t factor = 3;
  uint64_t term = 1;
  uint64_t ns = 1000;
  void* params[] = {&word, &factor, &term, &ns};
  CUDA_OK(cuLaunchKernel, reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr,
          params, nullptr);
  EXPECT_EQ(ReadWord(word), 7u);
  CUDA_OK(cuLibraryUnload, library);
}

RULE_TEST(LibraryTest, AKernelServesEveryContext,
          "one kernel of a library can be launched in each context",
          "CUDA Driver API 13.0, Execution Control, cuLaunchKernel; Library Management") {
  CUfunction turn = reinterpret_cast<CUfunction>(Get("turn"));
  CUDA_OK(cuLaunchKernel, turn, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  CUDA_OK(cuLaunchKernel, turn, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  CUDA_OK(cuCtxSynchronize);
  CUDA_OK(cuCtxDestroy_v2, other);
}

RULE_TEST(LibraryTest, AKernelHasAFunctionInTheContext,
          "cuKernelGetFunction gives the kernel's function for the current context",
          "CUDA Driver API 13.0, Library Management, cuKernelGetFunction") {
  CUfunction function = nullptr;
  CUDA_OK(cuKernelGetFunction, &function, Get("turn"));
  CUDA_OK(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  CUDA_OK(cuCtxSynchronize);
}

RULE_TEST(LibraryTest, ALibraryIsAModuleInTheContext,
          "cuLibraryGetModule gives the library's module, in which its functions are found",
          "CUDA Driver API 13.0, Library Management, cuLibraryGetModule") {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUDA_OK(cuLibraryGetModule, &module, library_);
  CUDA_OK(cuModuleGetFunction, &function, module, "spin");
}

RULE_TEST(LibraryTest, GlobalsBelongToAContext,
          "cuLibraryGetGlobal gives the address in the current context: each has its own",
          "CUDA Driver API 13.0, Library Management, cuLibraryGetGlobal") {
  CUdeviceptr here = 0;
  CUdeviceptr there = 0;
  size_t bytes = 0;
  CUDA_OK(cuLibraryGetGlobal, &here, &bytes, library_, "counter");
  EXPECT_EQ(bytes, 16u);
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  CUDA_OK(cuLibraryGetGlobal, &there, nullptr, library_, "counter");
  EXPECT_NE(here, there);
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuLibraryGetGlobal, &here, nullptr, library_, "none");
}

RULE_TEST(LibraryTest, PlainGlobalsAreNotManaged,
          "cuLibraryGetManaged finds managed variables only",
          "CUDA Driver API 13.0, Library Management, cuLibraryGetManaged") {
  CUdeviceptr address = 0;
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged, &address, nullptr, library_, "counter");
}

RULE_TEST(LibraryTest, KernelsAreCountedAndListed,
          "cuLibraryEnumerateKernels gives each of the cuLibraryGetKernelCount kernels",
          "CUDA Driver API 13.0, Library Management, cuLibraryEnumerateKernels") {
  unsigned count = 0;
  CUDA_OK(cuLibraryGetKernelCount, &count, library_);
  ASSERT_EQ(count, 2u);
  CUkernel kernels[2] = {};
  CUDA_OK(cuLibraryEnumerateKernels, kernels, 2, library_);
  std::set<std::string> names;
  for (CUkernel kernel : kernels) {
    const char* name = nullptr;
    CUDA_OK(cuKernelGetName, &name, kernel);
    names.insert(name);
  }
  EXPECT_EQ(names, (std::set<std::string>{"spin", "turn"}));
}

RULE_TEST(LibraryTest, AKernelKnowsItsLibrary, "cuKernelGetLibrary gives the library of a kernel",
          "CUDA Driver API 13.0, Library Management, cuKernelGetLibrary") {
  CUlibrary library = nullptr;
  CUDA_OK(cuKernelGetLibrary, &library, Get("turn"));
  EXPECT_EQ(library, library_);
}

RULE_TEST(LibraryTest, AttributesAreTheDevices,
          "cuKernelSetAttribute sets what cuKernelGetAttribute tells for that device",
          "CUDA Driver API 13.0, Library Management, cuKernelSetAttribute") {
  int value = 0;
  CUDA_OK(cuKernelSetAttribute, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, Get("turn"),
          0);
  CUDA_OK(cuKernelGetAttribute, &value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
          Get("turn"), 0);
  EXPECT_EQ(value, 50);
}

RULE_TEST(LibraryTest, AMissingFileIsNotFound,
          "cuLibraryLoadFromFile of a file that is not there is CUDA_ERROR_FILE_NOT_FOUND",
          "CUDA Driver API 13.0, Library Management, cuLibraryLoadFromFile; Data types, CUresult") {
  CUlibrary library = nullptr;
  CUDA_IS(CUDA_ERROR_FILE_NOT_FOUND, cuLibraryLoadFromFile, &library, "/nonexistent/image", nullptr,
          nullptr, 0, nullptr, nullptr, 0);
}

RULE_TEST(LibraryTest, AnUnloadedLibraryIsNoHandle,
          "an unloaded library is CUDA_ERROR_INVALID_HANDLE",
          "CUDA Driver API 13.0, Library Management, cuLibraryGetKernel (return values)") {
  SIMULATED_ONLY("a stale handle is undefined behaviour on a GPU");
  CUDA_OK(cuLibraryUnload, library_);
  CUkernel kernel = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuLibraryGetKernel, &kernel, library_, "turn");
  library_ = nullptr;
}

}  // namespace
}  // namespace prorata::conformance
