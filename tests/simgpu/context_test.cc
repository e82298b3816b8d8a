// Initialisation, devices, contexts, look-ups, fork.

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "driver.h"

namespace prorata::simgpu {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class ContextTest : public ::testing::Test {
 protected:
  void SetUp() override { CUDA_OK(cuInit, 0); }
};

TEST(InitTest, NothingWorksBefore) {
  int count = 0;
  CUDA_IS(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount, &count);
  CUcontext ctx;
  CUDA_IS(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent, &ctx);
  int version = 0;
  CUDA_OK(cuDriverGetVersion, &version);
  EXPECT_GE(version, 13000);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuInit, 1);
  CUDA_OK(cuInit, 0);
  CUDA_OK(cuDeviceGetCount, &count);
  EXPECT_EQ(count, 1);
}

TEST_F(ContextTest, TheDeviceDescribesItself) {
  char name[64];
  size_t bytes = 0;
  CUuuid uuid{};
  char bus[32];
  CUDA_OK(cuDeviceGetName, name, sizeof(name), 0);
  CUDA_OK(cuDeviceTotalMem_v2, &bytes, 0);
  CUDA_OK(cuDeviceGetUuid_v2, &uuid, 0);
  CUDA_OK(cuDeviceGetPCIBusId, bus, sizeof(bus), 0);
  EXPECT_EQ(bytes, 16384 * kMiB);
  CUuuid none{};
  EXPECT_NE(std::memcmp(&uuid, &none, sizeof(uuid)), 0);
  CUdevice device = -1;
  CUDA_OK(cuDeviceGetByPCIBusId, &device, bus);
  EXPECT_EQ(device, 0);
  int value = 0;
  CUDA_OK(cuDeviceGetAttribute, &value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
  EXPECT_EQ(value, 132);
  for (int i = 1; i < CU_DEVICE_ATTRIBUTE_MAX; ++i) {
    CUDA_OK(cuDeviceGetAttribute, &value, static_cast<CUdevice_attribute>(i), 0);
  }
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute, &value, CU_DEVICE_ATTRIBUTE_MAX, 0);
  CUDA_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet, &device, 1);
}

TEST_F(ContextTest, CallsWithoutAContextSaySo) {
  CUdeviceptr address;
  CUstream stream;
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2, &address, 1);
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuStreamCreate, &stream, 0);
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize);
}

TEST_F(ContextTest, EachThreadHasAStackOfContexts) {
  CUcontext a;
  CUcontext b;
  CUcontext seen;
  CUDA_OK(cuCtxCreate_v2, &a, 0, 0);
  CUDA_OK(cuCtxCreate_v4, &b, nullptr, CU_CTX_SCHED_SPIN, 0);
  CUDA_OK(cuCtxGetCurrent, &seen);
  EXPECT_EQ(seen, b);
  unsigned flags = 0;
  CUDA_OK(cuCtxGetFlags, &flags);
  EXPECT_EQ(flags, unsigned{CU_CTX_SCHED_SPIN});
  std::thread([&] {
    CUcontext other = a;
    CUDA_OK(cuCtxGetCurrent, &other);
    EXPECT_EQ(other, nullptr);
  }).join();
  CUDA_OK(cuCtxPopCurrent_v2, &seen);
  EXPECT_EQ(seen, b);
  CUDA_OK(cuCtxGetCurrent, &seen);
  EXPECT_EQ(seen, a);
  CUDA_OK(cuCtxPushCurrent_v2, b);
  CUDA_OK(cuCtxDestroy_v2, b);  // popped with it
  CUDA_OK(cuCtxGetCurrent, &seen);
  EXPECT_EQ(seen, a);
  CUDA_IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSetCurrent, b);
  CUDA_OK(cuCtxDestroy_v2, a);
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent, reinterpret_cast<CUcontext>(0x1000));
}

TEST_F(ContextTest, AContextDestroyedElsewhereIsFoundDead) {
  CUcontext ctx;
  CUDA_OK(cuCtxCreate_v2, &ctx, 0, 0);
  std::thread([&] { CUDA_OK(cuCtxDestroy_v2, ctx); }).join();
  CUdeviceptr address;
  CUDA_IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2, &address, 1);
  CUcontext popped;
  CUDA_OK(cuCtxPopCurrent_v2, &popped);
}

TEST_F(ContextTest, ContextsCostMemoryUntilThereIsNone) {
  std::vector<CUcontext> all;
  CUcontext ctx;
  CUresult result;
  while ((result = CUDA(cuCtxCreate_v2)(&ctx, 0, 0)) == CUDA_SUCCESS) all.push_back(ctx);
  EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(all.size(), 32u);  // 16 GiB at 512 MiB each
  while (!all.empty()) {
    CUDA_OK(cuCtxDestroy_v2, all.back());
    all.pop_back();
  }
  CUDA_OK(cuCtxCreate_v2, &ctx, 0, 0);
  CUDA_OK(cuCtxDestroy_v2, ctx);
}

TEST_F(ContextTest, ThePrimaryContextIsCountedAndKeepsItsHandle) {
  CUcontext first;
  CUcontext second;
  unsigned flags = 0;
  int active = 1;
  CUDA_OK(cuDevicePrimaryCtxGetState, 0, &flags, &active);
  EXPECT_EQ(active, 0);
  CUDA_OK(cuDevicePrimaryCtxRetain, &first, 0);
  CUDA_OK(cuDevicePrimaryCtxRetain, &second, 0);
  EXPECT_EQ(first, second);
  CUDA_OK(cuDevicePrimaryCtxRelease_v2, 0);
  CUDA_OK(cuDevicePrimaryCtxGetState, 0, &flags, &active);
  EXPECT_EQ(active, 1);
  CUDA_OK(cuCtxSetCurrent, first);
  CUdeviceptr address;
  CUDA_OK(cuMemAlloc_v2, &address, 100 * kMiB);
  CUDA_OK(cuDevicePrimaryCtxReset_v2, 0);
  CUDA_IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2, &address, 1);
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2, 0);
  CUDA_OK(cuDevicePrimaryCtxRetain, &second, 0);
  EXPECT_EQ(first, second);
  size_t free_bytes = 0;
  size_t total = 0;
  CUDA_OK(cuMemGetInfo_v2, &free_bytes, &total);
  EXPECT_EQ(free_bytes, total - 512 * kMiB);  // the reset freed the allocation
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2, first);
  CUDA_OK(cuDevicePrimaryCtxRelease_v2, 0);
  CUDA_OK(cuCtxSetCurrent, nullptr);
}

TEST_F(ContextTest, LookupsGiveTheNewestThatAVersionKnows) {
  void* at11 = nullptr;
  void* at13 = nullptr;
  void* threads = nullptr;
  void* none = &none;
  CUdriverProcAddressQueryResult status;
  CUDA_OK(cuGetProcAddress, "cuCtxGetDevice", &at11, 11000, 0);
  CUDA_OK(cuGetProcAddress_v2, "cuCtxGetDevice", &at13, 13000, 0, &status);
  EXPECT_EQ(at11, DriverSymbol("cuCtxGetDevice"));
  EXPECT_EQ(at13, DriverSymbol("cuCtxGetDevice_v2"));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
  CUDA_OK(cuGetProcAddress_v2, "cuStreamSynchronize", &threads, 12000,
          CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status);
  EXPECT_EQ(threads, DriverSymbol("cuStreamSynchronize_ptsz"));
  CUDA_OK(cuGetProcAddress_v2, "cuMemAlloc", &threads, 12000,
          CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status);
  EXPECT_EQ(threads, DriverSymbol("cuMemAlloc_v2"));
  CUDA_OK(cuGetProcAddress_v2, "cuNoSuchThing", &none, 12000, 0, &status);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CUDA_OK(cuGetProcAddress_v2, "cuLibraryLoadData", &none, 11000, 0, &status);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CUDA_IS(CUDA_ERROR_NOT_FOUND, cuGetProcAddress, "cuNoSuchThing", &none, 12000, 0);
}

TEST_F(ContextTest, ErrorsHaveNamesAndTexts) {
  const char* text = nullptr;
  CUDA_OK(cuGetErrorName, CUDA_ERROR_OUT_OF_MEMORY, &text);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  CUDA_OK(cuGetErrorString, CUDA_ERROR_OUT_OF_MEMORY, &text);
  EXPECT_STREQ(text, "out of memory");
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGetErrorName, static_cast<CUresult>(12345), &text);
  EXPECT_EQ(text, nullptr);
}

TEST_F(ContextTest, UnknownExportTablesAreRefused) {
  const CUuuid uuid{};
  const void* table = &uuid;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGetExportTable, &table, &uuid);
  EXPECT_EQ(table, nullptr);
}

TEST_F(ContextTest, FunctionsNotImplementedSayNotSupported) {
  CUipcMemHandle handle;
  CUDA_IS(CUDA_ERROR_NOT_SUPPORTED, cuIpcGetMemHandle, &handle, 0);
}

// A forked child has no driver, whatever it tries, and the parent goes on.
TEST_F(ContextTest, AForkedChildIsNotInitialized) {
  CUcontext ctx;
  CUDA_OK(cuCtxCreate_v2, &ctx, 0, 0);
  CUdeviceptr address;
  CUDA_OK(cuMemAlloc_v2, &address, 4 * kMiB);
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
  CUDA_OK(cuMemsetD8_v2, address, 1, 4 * kMiB);
  CUDA_OK(cuCtxSynchronize);
  CUDA_OK(cuMemFree_v2, address);
  CUDA_OK(cuCtxDestroy_v2, ctx);
}

}  // namespace
}  // namespace prorata::simgpu
