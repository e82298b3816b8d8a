// Functions: what can be asked of them and set on them, and how many of their blocks fit.

#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kSet[] = "CUDA Driver API 13.0, Execution Control, cuFuncSetAttribute";
constexpr char kParamInfo[] = "CUDA Driver API 13.0, Execution Control, cuFuncGetParamInfo";
constexpr char kOccupancy[] =
    "CUDA Driver API 13.0, Occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor";
constexpr char kPotential[] = "CUDA Driver API 13.0, Occupancy, cuOccupancyMaxPotentialBlockSize";

class FunctionTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    step_ = Kernel("step");
  }
  int Attribute(CUfunction_attribute attribute) {
    int value = -100;
    EXPECT_EQ(CUDA(cuFuncGetAttribute)(&value, attribute, step_), CUDA_SUCCESS);
    return value;
  }
  int Ask(CUdevice_attribute attribute) {
    int value = 0;
    EXPECT_EQ(CUDA(cuDeviceGetAttribute)(&value, attribute, 0), CUDA_SUCCESS);
    return value;
  }
  int Blocks(int threads, size_t shared) {
    int blocks = -1;
    EXPECT_EQ(CUDA(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, step_, threads, shared),
              CUDA_SUCCESS);
    return blocks;
  }
  CUfunction step_ = nullptr;
};

RULE_TEST(FunctionTest, AFunctionKnowsItsName, "cuFuncGetName gives the name it was found by",
          "CUDA Driver API 13.0, Execution Control, cuFuncGetName") {
  const char* name = nullptr;
  CUDA_OK(cuFuncGetName, &name, step_);
  EXPECT_STREQ(name, "step");
}

RULE_TEST(FunctionTest, AFunctionKnowsItsModule, "cuFuncGetModule gives the module it is in",
          "CUDA Driver API 13.0, Execution Control, cuFuncGetModule") {
  CUmodule module = nullptr;
  CUDA_OK(cuFuncGetModule, &module, step_);
  EXPECT_EQ(module, module_);
}

RULE_TEST(FunctionTest, ParametersHaveOffsetsAndSizes,
          "cuFuncGetParamInfo gives each parameter's offset and size; the size's place is optional",
          kParamInfo) {
  for (size_t i = 0; i < 4; ++i) {
    size_t offset = 99;
    size_t size = 0;
    CUDA_OK(cuFuncGetParamInfo, step_, i, &offset, &size);
    EXPECT_EQ(offset, i * 8);
    EXPECT_EQ(size, 8u);
    CUDA_OK(cuFuncGetParamInfo, step_, i, &offset, nullptr);
  }
}

RULE_TEST(FunctionTest, ParametersEnd,
          "an index that is not less than the number of parameters is CUDA_ERROR_INVALID_VALUE",
          kParamInfo) {
  size_t offset = 0;
  size_t size = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo, step_, 4, &offset, &size);
}

RULE_TEST(FunctionTest, ThreadsPerBlockAreTheDevicesAtMost,
          "a function's MAX_THREADS_PER_BLOCK is positive and not above the device's",
          "CUDA Driver API 13.0, Execution Control, cuFuncGetAttribute") {
  EXPECT_GT(Attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 0);
  EXPECT_LE(Attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            Ask(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
}

RULE_TEST(FunctionTest, VersionsAreTensOfTheCapability,
          "BINARY_VERSION is 10 * major + minor, of at most the device's compute capability",
          "CUDA Driver API 13.0, Execution Control, cuFuncGetAttribute") {
  const int device = Ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 +
                     Ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_GT(Attribute(CU_FUNC_ATTRIBUTE_BINARY_VERSION), 0);
  EXPECT_LE(Attribute(CU_FUNC_ATTRIBUTE_BINARY_VERSION), device);
}

RULE_TEST(FunctionTest, SharedMemoryIsLimitedAtFirst,
          "the dynamic shared memory a function may use is the device's limit for one that did "
          "not opt in, less its own",
          "CUDA Driver API 13.0, Execution Control, cuFuncGetAttribute; CUDA C++ Programming "
          "Guide, Shared Memory") {
  EXPECT_EQ(Attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES),
            Ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK) -
                Attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
}

RULE_TEST(FunctionTest, SharedMemoryHasADeviceLimit,
          "MAX_DYNAMIC_SHARED_SIZE_BYTES cannot exceed the device's opt-in limit", kSet) {
  const int most = Ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  CUDA_OK(cuFuncSetAttribute, step_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most);
  EXPECT_EQ(Attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), most);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute, step_,
          CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most + 1);
}

RULE_TEST(FunctionTest, SomeAttributesAreReadOnly,
          "setting a read-only attribute is CUDA_ERROR_INVALID_VALUE", kSet) {
  for (CUfunction_attribute attribute :
       {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        CU_FUNC_ATTRIBUTE_NUM_REGS, CU_FUNC_ATTRIBUTE_BINARY_VERSION}) {
    CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute, step_, attribute, 1);
  }
}

RULE_TEST(FunctionTest, TheCarveoutIsAPercentage,
          "PREFERRED_SHARED_MEMORY_CARVEOUT is a percentage, or -1 for the default",
          "CUDA Driver API 13.0, Data types, CUshared_carveout; cuFuncSetAttribute") {
  for (int value : {0, 50, 100, -1}) {
    CUDA_OK(cuFuncSetAttribute, step_, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, value);
    EXPECT_EQ(Attribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT), value);
  }
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute, step_,
          CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101);
}

RULE_TEST(FunctionTest, AnUnknownAttributeIsRefused,
          "an attribute outside the enumeration is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Execution Control, cuFuncGetAttribute (return values)") {
  int value = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuFuncGetAttribute, &value,
          static_cast<CUfunction_attribute>(999), step_);
}

RULE_TEST(FunctionTest, ALoadedFunctionSaysSo,
          "cuFuncLoad loads a function, and cuFuncIsLoaded tells",
          "CUDA Driver API 13.0, Execution Control, cuFuncLoad and cuFuncIsLoaded") {
  CUDA_OK(cuFuncLoad, step_);
  CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_UNLOADED;
  CUDA_OK(cuFuncIsLoaded, &state, step_);
  EXPECT_EQ(state, CU_FUNCTION_LOADING_STATE_LOADED);
}

RULE_TEST(FunctionTest, ThreadsBoundOccupancy,
          "blocks of a small kernel fill an SM up to its threads and its limit of blocks",
          kOccupancy) {
  const int threads = Ask(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  const int blocks = Ask(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  EXPECT_EQ(Blocks(1024, 0), threads / 1024);
  EXPECT_EQ(Blocks(512, 0), threads / 512);
  EXPECT_EQ(Blocks(32, 0), std::min(threads / 32, blocks));
  EXPECT_EQ(Blocks(1, 0), Blocks(32, 0));  // a block takes whole warps
}

RULE_TEST(FunctionTest, SharedMemoryBoundsOccupancy,
          "each block takes its dynamic shared memory, and what is reserved, from the SM's",
          kOccupancy) {
  const int per_sm = Ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  const int reserved = Ask(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
  const int shared = 40 * 1024;
  EXPECT_EQ(Blocks(32, shared), per_sm / (shared + reserved));
  EXPECT_LE(Blocks(32, shared), Blocks(32, 0));
}

RULE_TEST(FunctionTest, BlocksOfNoThreadsAreRefused,
          "occupancy of a block without threads is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor (return "
          "values)") {
  int blocks = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, step_, 0,
          0);
}

RULE_TEST(FunctionTest, TheSuggestedBlockFillsTheDevice,
          "the suggested block size reaches the highest occupancy, and the grid fills all SMs",
          kPotential) {
  int grid = 0;
  int block = 0;
  CUDA_OK(cuOccupancyMaxPotentialBlockSize, &grid, &block, step_, nullptr, 0, 0);
  EXPECT_GT(block, 0);
  EXPECT_LE(block, 1024);
  EXPECT_EQ(Blocks(block, 0) * block, Ask(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR));
  EXPECT_EQ(grid, Blocks(block, 0) * Ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
}

RULE_TEST(FunctionTest, TheSuggestionKeepsItsLimit,
          "the suggested block size is not above blockSizeLimit", kPotential) {
  int grid = 0;
  int block = 0;
  CUDA_OK(cuOccupancyMaxPotentialBlockSize, &grid, &block, step_, nullptr, 0, 96);
  EXPECT_GT(block, 0);
  EXPECT_LE(block, 96);
}

RULE_TEST(FunctionTest, SharedMemoryLeftOverIsReported,
          "with the shared memory that cuOccupancyAvailableDynamicSMemPerBlock gives, as many "
          "blocks fit as were asked about",
          "CUDA Driver API 13.0, Occupancy, cuOccupancyAvailableDynamicSMemPerBlock") {
  for (int blocks : {1, 2, 4}) {
    size_t shared = 0;
    CUDA_OK(cuOccupancyAvailableDynamicSMemPerBlock, &shared, step_, blocks, 128);
    EXPECT_GT(shared, 0u);
    EXPECT_GE(Blocks(128, shared), blocks);
  }
}

RULE_TEST(FunctionTest, HostKernelsCompute,
          "a host image's kernels compute, on device memory at its own addresses",
          "sim/host_kernel.h") {
  SIMULATED_ONLY("the kernel is a host function");
  constexpr int kCount = 1000;
  std::vector<float> a(kCount);
  std::vector<float> b(kCount, 0.5f);
  for (int i = 0; i < kCount; ++i) a[i] = static_cast<float>(i);
  CUdeviceptr device[3];
  for (CUdeviceptr& each : device) CUDA_OK(cuMemAlloc_v2, &each, kCount * sizeof(float));
  CUDA_OK(cuMemcpyHtoD_v2, device[0], a.data(), kCount * sizeof(float));
  CUDA_OK(cuMemcpyHtoD_v2, device[1], b.data(), kCount * sizeof(float));
  int count = kCount;
  void* params[] = {&device[0], &device[1], &device[2], &count};
  CUDA_OK(cuLaunchKernel, Kernel("add"), 4, 1, 1, 256, 1, 1, 0, nullptr, params, nullptr);
  std::vector<float> c(kCount);
  CUDA_OK(cuMemcpyDtoH_v2, c.data(), device[2], kCount * sizeof(float));
  for (int i = 0; i < kCount; ++i) ASSERT_EQ(c[i], a[i] + 0.5f) << i;
}

RULE_TEST(FunctionTest, HostImagesListTheirGlobals,
          "a host image's listed data is found as a global, with its initial value",
          "sim/host_kernel.h") {
  SIMULATED_ONLY("the image is a host object");
  CUdeviceptr address = 0;
  CUDA_OK(cuModuleGetGlobal_v2, &address, nullptr, module_, "host_word");
  EXPECT_EQ(ReadWord(address), 17u);
  CUfunction function = nullptr;
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction, &function, module_, "step__param_sizes");
}

}  // namespace
}  // namespace prorata::conformance
