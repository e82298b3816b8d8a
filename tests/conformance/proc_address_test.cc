// cuGetProcAddress: a name, a version and flags give a function.

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kEntry[] = "CUDA Driver API 13.0, Driver Entry Point Access, cuGetProcAddress";

class ProcAddressTest : public ::testing::Test {
 protected:
  void SetUp() override { CUDA_OK(cuInit, 0); }
  // The address, or null; status_ says why.
  void* Find(const char* name, int version, cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT) {
    void* address = this;
    EXPECT_EQ(CUDA(cuGetProcAddress_v2)(name, &address, version, flags, &status_), CUDA_SUCCESS)
        << name;
    return address;
  }
  CUdriverProcAddressQueryResult status_ = CU_GET_PROC_ADDRESS_SUCCESS;
};

RULE_TEST(ProcAddressTest, AKnownFunctionIsFound,
          "a function that the version has is found, and works", kEntry) {
  auto* count = reinterpret_cast<decltype(&cuDeviceGetCount)>(Find("cuDeviceGetCount", 12000));
  ASSERT_NE(count, nullptr);
  EXPECT_EQ(status_, CU_GET_PROC_ADDRESS_SUCCESS);
  int devices = 0;
  EXPECT_EQ(count(&devices), CUDA_SUCCESS);
  EXPECT_GE(devices, 1);
}

RULE_TEST(ProcAddressTest, TheVersionDecidesWhichAbi,
          "of a function with several ABIs, the newest that the version knows is given", kEntry) {
  int driver = 0;
  CUDA_OK(cuDriverGetVersion, &driver);
  EXPECT_EQ(Find("cuMemAlloc", 3020), DriverSymbol("cuMemAlloc_v2"));
  EXPECT_EQ(Find("cuMemAlloc", 2000), DriverSymbol("cuMemAlloc"));
  EXPECT_EQ(Find("cuCtxGetDevice", 11000), DriverSymbol("cuCtxGetDevice"));
  if (driver >= 13000) {
    EXPECT_EQ(Find("cuCtxGetDevice", 13000), DriverSymbol("cuCtxGetDevice_v2"));
  }
}

RULE_TEST(ProcAddressTest, ANewerFunctionIsNotSufficient,
          "a function that came later than the version is not given: VERSION_NOT_SUFFICIENT",
          kEntry) {
  EXPECT_EQ(Find("cuLibraryLoadData", 11000), nullptr);
  EXPECT_EQ(status_, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

RULE_TEST(ProcAddressTest, AnUnknownNameIsNotFound,
          "a name of no function gives NULL and SYMBOL_NOT_FOUND, and the call succeeds", kEntry) {
  EXPECT_EQ(Find("cuNoSuchThing", 12000), nullptr);
  EXPECT_EQ(status_, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

RULE_TEST(ProcAddressTest, SuffixesAreNotNames,
          "the name is the base name: one with a version's suffix is not found", kEntry) {
  EXPECT_EQ(Find("cuMemAlloc_v2", 12000), nullptr);
  EXPECT_EQ(status_, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

RULE_TEST(ProcAddressTest, PerThreadVariantsAreAskedFor,
          "with the PER_THREAD_DEFAULT_STREAM flag the per-thread variant is given", kEntry) {
  EXPECT_EQ(Find("cuStreamSynchronize", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
            DriverSymbol("cuStreamSynchronize_ptsz"));
  EXPECT_EQ(Find("cuMemcpyHtoD", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
            DriverSymbol("cuMemcpyHtoD_v2_ptds"));
}

RULE_TEST(ProcAddressTest, WhatHasNoPerThreadVariantIsGivenAsItIs,
          "with that flag, a function without such a variant is given as the legacy one", kEntry) {
  EXPECT_EQ(Find("cuMemAlloc", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
            DriverSymbol("cuMemAlloc_v2"));
}

RULE_TEST(ProcAddressTest, LegacyVariantsAreTheDefault,
          "without flags, or with LEGACY_STREAM, the variant of the legacy stream is given",
          kEntry) {
  EXPECT_EQ(Find("cuStreamSynchronize", 12000), DriverSymbol("cuStreamSynchronize"));
  EXPECT_EQ(Find("cuStreamSynchronize", 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM),
            DriverSymbol("cuStreamSynchronize"));
}

RULE_TEST(ProcAddressTest, AVersionBeyondTheDriversIsRefused,
          "a version greater than the driver's is CUDA_ERROR_INVALID_VALUE", kEntry) {
  int driver = 0;
  CUDA_OK(cuDriverGetVersion, &driver);
  void* address = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2, "cuInit", &address, driver + 1000, 0,
          nullptr);
}

RULE_TEST(ProcAddressTest, UnknownFlagsAreRefused,
          "flags outside the enumeration are CUDA_ERROR_INVALID_VALUE", kEntry) {
  void* address = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2, "cuInit", &address, 12000, 0x40, nullptr);
}

RULE_TEST(ProcAddressTest, NamesAndPlacesAreNeeded,
          "a NULL name or a NULL place is CUDA_ERROR_INVALID_VALUE", kEntry) {
  SIMULATED_ONLY("an H100's driver (580.159.04) follows such a pointer and crashes");
  void* address = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2, nullptr, &address, 12000, 0, nullptr);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2, "cuInit", nullptr, 12000, 0, nullptr);
}

RULE_TEST(ProcAddressTest, TheOldAbiHasNoStatus,
          "the first ABI of cuGetProcAddress says CUDA_ERROR_NOT_FOUND for a name that is none",
          "CUDA Driver API 11.3, Driver Entry Point Access, cuGetProcAddress (return values)") {
  void* address = nullptr;
  CUDA_OK(cuGetProcAddress, "cuInit", &address, 11030, 0);
  EXPECT_EQ(address, DriverSymbol("cuInit"));
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuGetProcAddress, "cuNoSuchThing", &address, 11030, 0);
}

}  // namespace
}  // namespace prorata::conformance
