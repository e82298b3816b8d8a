// Errors: their names and texts; what a process may call before cuInit and after fork.

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kName[] = "CUDA Driver API 13.0, Error Handling, cuGetErrorName";
constexpr char kText[] = "CUDA Driver API 13.0, Error Handling, cuGetErrorString";
constexpr char kInit[] = "CUDA Driver API 13.0, Initialization, cuInit";

class ErrorTest : public ::testing::Test {
 protected:
  void SetUp() override { CUDA_OK(cuInit, 0); }
};

class InitTest : public ::testing::Test {};

RULE_TEST(ErrorTest, AnErrorHasItsEnumeratorsName, "cuGetErrorName gives the enumerator's name",
          kName) {
  const char* text = nullptr;
  CUDA_OK(cuGetErrorName, CUDA_ERROR_OUT_OF_MEMORY, &text);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  CUDA_OK(cuGetErrorName, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, &text);
  EXPECT_STREQ(text, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
  CUDA_OK(cuGetErrorName, CUDA_SUCCESS, &text);
  EXPECT_STREQ(text, "CUDA_SUCCESS");
}

RULE_TEST(ErrorTest, AnErrorHasAText, "cuGetErrorString describes the error", kText) {
  const char* text = nullptr;
  CUDA_OK(cuGetErrorString, CUDA_ERROR_OUT_OF_MEMORY, &text);
  EXPECT_STREQ(text, "out of memory");
  CUDA_OK(cuGetErrorString, CUDA_SUCCESS, &text);
  EXPECT_STREQ(text, "no error");
}

RULE_TEST(ErrorTest, TheCommonErrorsAllHaveBoth,
          "every error that this suite expects has a name and a text", kText) {
  for (CUresult error : {CUDA_ERROR_INVALID_VALUE,
                         CUDA_ERROR_NOT_INITIALIZED,
                         CUDA_ERROR_NO_DEVICE,
                         CUDA_ERROR_INVALID_DEVICE,
                         CUDA_ERROR_INVALID_IMAGE,
                         CUDA_ERROR_INVALID_CONTEXT,
                         CUDA_ERROR_INVALID_PTX,
                         CUDA_ERROR_UNSUPPORTED_LIMIT,
                         CUDA_ERROR_FILE_NOT_FOUND,
                         CUDA_ERROR_INVALID_HANDLE,
                         CUDA_ERROR_ILLEGAL_STATE,
                         CUDA_ERROR_NOT_FOUND,
                         CUDA_ERROR_NOT_READY,
                         CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
                         CUDA_ERROR_CONTEXT_IS_DESTROYED,
                         CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                         CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                         CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                         CUDA_ERROR_NOT_PERMITTED,
                         CUDA_ERROR_NOT_SUPPORTED,
                         CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                         CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                         CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                         CUDA_ERROR_UNKNOWN}) {
    const char* name = nullptr;
    const char* text = nullptr;
    CUDA_OK(cuGetErrorName, error, &name);
    CUDA_OK(cuGetErrorString, error, &text);
    ASSERT_NE(name, nullptr);
    ASSERT_NE(text, nullptr);
    EXPECT_EQ(std::strncmp(name, "CUDA_ERROR_", 11), 0) << name;
    EXPECT_GT(std::strlen(text), 0u) << name;
  }
}

RULE_TEST(ErrorTest, AnUnknownErrorHasNoName,
          "a code that is no error is CUDA_ERROR_INVALID_VALUE, and the name NULL", kName) {
  const char* text = "before";
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGetErrorName, static_cast<CUresult>(12345), &text);
  EXPECT_EQ(text, nullptr);
}

RULE_TEST(ErrorTest, AnUnknownErrorHasNoText,
          "a code that is no error is CUDA_ERROR_INVALID_VALUE, and the text NULL", kText) {
  const char* text = "before";
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGetErrorString, static_cast<CUresult>(12345), &text);
  EXPECT_EQ(text, nullptr);
}

RULE_TEST(ErrorTest, UnknownExportTablesAreRefused,
          "cuGetExportTable of a table that is not known is an error and gives none",
          "the driver's behaviour as cudart relies on it (facts/remote.md, 2)") {
  const CUuuid uuid{};
  const void* table = &uuid;
  EXPECT_NE(CUDA(cuGetExportTable)(&table, &uuid), CUDA_SUCCESS);
}

RULE_TEST(
    ErrorTest, CuptiHasItsExportTable,
    "cuGetExportTable gives, before cuInit too, the table that CUPTI asks for at its first call; "
    "the table's size is its first word",
    "libcupti 13.2 (nvidia-cuda-cupti 13.2.86) calls itself until its stack ends where it is "
    "refused") {
  const CUuuid cupti = {{0x7c, static_cast<char>(0xb6), 0x3f, static_cast<char>(0x9b),
                         static_cast<char>(0x9c), static_cast<char>(0xa4), static_cast<char>(0x8e),
                         0x42, static_cast<char>(0xa4), static_cast<char>(0x84),
                         static_cast<char>(0xbe), static_cast<char>(0xb6), 0x6e, 0x6a,
                         static_cast<char>(0xed), 0x7f}};
  if (!InFreshProcess()) return;
  const void* table = nullptr;
  CUDA_OK(cuGetExportTable, &table, &cupti);
  ASSERT_NE(table, nullptr);
  const size_t bytes = *static_cast<const size_t*>(table);
  EXPECT_GE(bytes, sizeof(size_t));
  EXPECT_LE(bytes, 65536u);
}

RULE_TEST(ErrorTest, WhatIsNotModelledIsNotSupported,
          "a function that the simulated driver does not implement is CUDA_ERROR_NOT_SUPPORTED",
          "docs/design/simulated-gpu.md, What it does not") {
  SIMULATED_ONLY("a GPU's driver implements them");
  CUmulticastObjectProp prop{};
  CUmemGenericAllocationHandle handle;
  CUDA_IS(CUDA_ERROR_NOT_SUPPORTED, cuMulticastCreate, &handle, &prop);
}

RULE_TEST(InitTest, NothingWorksBefore,
          "before cuInit, functions of the driver API are CUDA_ERROR_NOT_INITIALIZED", kInit) {
  if (!InFreshProcess()) return;
  int count = 0;
  CUcontext ctx = nullptr;
  CUdeviceptr address = 0;
  CUDA_IS(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount, &count);
  CUDA_IS(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent, &ctx);
  CUDA_IS(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_v2, &address, 100);
  CUDA_IS(CUDA_ERROR_NOT_INITIALIZED, cuCtxCreate_v2, &ctx, 0, 0);
  CUDA_OK(cuInit, 0);
  CUDA_OK(cuDeviceGetCount, &count);
}

RULE_TEST(InitTest, TheVersionIsKnownBefore,
          "cuDriverGetVersion works before cuInit and gives 1000 * major + 10 * minor",
          "CUDA Driver API 13.0, Version Management, cuDriverGetVersion") {
  if (!InFreshProcess()) return;
  int version = 0;
  CUDA_OK(cuDriverGetVersion, &version);
  EXPECT_GE(version, 11000);
  EXPECT_LT(version, 100'000);
  EXPECT_EQ(version % 10, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDriverGetVersion, nullptr);
}

RULE_TEST(InitTest, ErrorsAreNamedBefore, "cuGetErrorName needs no cuInit",
          "CUDA Driver API 13.0, Error Handling, cuGetErrorName (return values)") {
  if (!InFreshProcess()) return;
  const char* text = nullptr;
  CUDA_OK(cuGetErrorName, CUDA_ERROR_NOT_INITIALIZED, &text);
  EXPECT_STREQ(text, "CUDA_ERROR_NOT_INITIALIZED");
}

RULE_TEST(InitTest, FlagsMustBeZero, "cuInit's Flags must be 0", kInit) {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuInit, 1);
}

RULE_TEST(InitTest, ItMayBeCalledAgain, "cuInit succeeds however often it is called", kInit) {
  CUDA_OK(cuInit, 0);
  CUDA_OK(cuInit, 0);
}

// Whatever the child tries; and the parent goes on.
RULE_TEST(InitTest, AForkedChildIsNotInitialized,
          "a child forked after cuInit has no driver: its calls are CUDA_ERROR_NOT_INITIALIZED",
          "CUDA C++ Programming Guide 13.0, 6.2.1 Initialization (fork is not supported); cuInit, "
          "as observed") {
  CUDA_OK(cuInit, 0);
  CUcontext ctx;
  CUDA_OK(cuCtxCreate_v2, &ctx, 0, 0);
  CUdeviceptr address;
  CUDA_OK(cuMemAlloc_v2, &address, 4 << 20);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int bad = 0;
    int count;
    CUcontext current;
    size_t free_bytes;
    bad |= CUDA(cuInit)(0) != CUDA_ERROR_NOT_INITIALIZED;
    bad |= CUDA(cuDeviceGetCount)(&count) != CUDA_ERROR_NOT_INITIALIZED;
    bad |= CUDA(cuCtxGetCurrent)(&current) != CUDA_ERROR_NOT_INITIALIZED;
    bad |= CUDA(cuMemFree_v2)(address) != CUDA_ERROR_NOT_INITIALIZED;
    bad |= CUDA(cuMemGetInfo_v2)(&free_bytes, &free_bytes) != CUDA_ERROR_NOT_INITIALIZED;
    bad |= CUDA(cuCtxDestroy_v2)(ctx) != CUDA_ERROR_NOT_INITIALIZED;
    _exit(bad);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  CUDA_OK(cuMemsetD8_v2, address, 1, 4 << 20);
  CUDA_OK(cuCtxSynchronize);
  CUDA_OK(cuMemFree_v2, address);
  CUDA_OK(cuCtxDestroy_v2, ctx);
}

}  // namespace
}  // namespace prorata::conformance
