// Memory and events of another process.

#include <cstring>

#include "conformance.h"
#include "other_process.h"

namespace prorata::conformance {
namespace {

constexpr uint64_t kSlabBytes = 2 * kMiB;
constexpr const char* kOpenSource = "CUDA Driver API, Memory Management, cuIpcOpenMemHandle_v2";
constexpr const char* kGetSource = "CUDA Driver API, Memory Management, cuIpcGetMemHandle";
constexpr const char* kCloseSource = "CUDA Driver API, Memory Management, cuIpcCloseMemHandle";

class IpcMemoryTest : public DriverTest {
 protected:
  CUdeviceptr Allocate(uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuMemAlloc_v2)(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  CUipcMemHandle HandleOf(CUdeviceptr address) {
    CUipcMemHandle handle{};
    EXPECT_EQ(CUDA(cuIpcGetMemHandle)(&handle, address), CUDA_SUCCESS);
    return handle;
  }
  void Write(CUdeviceptr address, uint64_t value) {
    EXPECT_EQ(CUDA(cuMemcpyHtoD_v2)(address, &value, sizeof(value)), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuCtxSynchronize)(), CUDA_SUCCESS);
  }
};

RULE_TEST(IpcMemoryTest, BothProcessesSeeTheSameBytes,
          "memory that is opened is the exporter's: what either writes, by copies or kernels, the "
          "other reads",
          kOpenSource) {
  const CUdeviceptr mine = Allocate(4 * kMiB);
  Write(mine + kMiB, 7);
  OtherProcess other;
  const Reply opened = other.Open(HandleOf(mine), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  ASSERT_EQ(opened.result, CUDA_SUCCESS);
  EXPECT_EQ(other.Read(opened.value + kMiB).value, 7u);
  EXPECT_EQ(other.Write(opened.value, 5).result, CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(mine), 5u);
  EXPECT_EQ(other.Step(opened.value, 2, 1, 1000).result, CUDA_SUCCESS);
  EXPECT_EQ(other.Synchronize().result, CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(mine), 11u);
  EXPECT_EQ(other.RangeBytes(opened.value).value, 4 * kMiB);
}

RULE_TEST(IpcMemoryTest, AHandleIsNotForTheProcessThatMadeIt,
          "the process that exported the memory cannot open its own handle", kOpenSource) {
  const CUdeviceptr mine = Allocate(kSlabBytes);
  CUdeviceptr again = 0;
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle_v2, &again, HandleOf(mine),
          CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

RULE_TEST(IpcMemoryTest, OpeningAgainCountsAndGivesTheSameAddress,
          "a handle that the context has opened already gives the same address, and must be closed "
          "as often",
          kOpenSource) {
  const CUdeviceptr mine = Allocate(kSlabBytes);
  const CUipcMemHandle handle = HandleOf(mine);
  OtherProcess other;
  const Reply first = other.Open(handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  const Reply second = other.Open(handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  ASSERT_EQ(first.result, CUDA_SUCCESS);
  ASSERT_EQ(second.result, CUDA_SUCCESS);
  EXPECT_EQ(first.value, second.value);
  EXPECT_EQ(other.Close(first.value).result, CUDA_SUCCESS);
  EXPECT_EQ(other.Write(first.value, 3).result, CUDA_SUCCESS);
  EXPECT_EQ(other.Close(first.value).result, CUDA_SUCCESS);
  EXPECT_NE(other.Write(first.value, 4).result, CUDA_SUCCESS);
  EXPECT_EQ(other.Close(first.value).result, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ReadWord(mine), 3u);
}

RULE_TEST(IpcMemoryTest, OneContextOfADeviceOpensThem,
          "handles of one process's device are opened by one context per device of another process",
          kOpenSource) {
  const CUipcMemHandle handle = HandleOf(Allocate(kSlabBytes));
  OtherProcess other;
  ASSERT_EQ(other.Open(handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS).result, CUDA_SUCCESS);
  ASSERT_EQ(other.NewContext().result, CUDA_SUCCESS);
  EXPECT_NE(other.Open(handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS).result, CUDA_SUCCESS);
}

RULE_TEST(IpcMemoryTest, ClosingLeavesTheExporterWhatItHad,
          "closing unmaps the memory from the importer; the exporter's is not affected",
          kCloseSource) {
  const CUdeviceptr mine = Allocate(kSlabBytes);
  const uint64_t before = FreeBytes();
  {
    OtherProcess other;
    const Reply opened = other.Open(HandleOf(mine), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    ASSERT_EQ(other.Write(opened.value, 9).result, CUDA_SUCCESS);
    ASSERT_EQ(other.Close(opened.value).result, CUDA_SUCCESS);
  }
  EXPECT_EQ(ReadWord(mine), 9u);
  EXPECT_EQ(FreeBytes(), before);
  CUDA_OK(cuMemFree_v2, mine);
  EXPECT_EQ(FreeBytes(), before + kSlabBytes);
}

RULE_TEST(IpcMemoryTest, AHandleOfFreedMemoryOpensNothing,
          "a handle names an allocation that is alive; cuMemFree ends it", kGetSource) {
  const CUdeviceptr mine = Allocate(kSlabBytes);
  const CUipcMemHandle handle = HandleOf(mine);
  CUDA_OK(cuMemFree_v2, mine);
  OtherProcess other;
  EXPECT_EQ(other.Open(handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS).result,
            CUDA_ERROR_INVALID_VALUE);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle, &const_cast<CUipcMemHandle&>(handle), mine);
}

RULE_TEST(IpcMemoryTest, OnlyAllocationsOfCuMemAllocHaveHandles,
          "handles are for memory of cuMemAlloc: not for pools, managed or host memory",
          kGetSource) {
  CUipcMemHandle handle;
  CUdeviceptr managed = 0;
  CUdeviceptr pooled = 0;
  void* host = nullptr;
  CUDA_OK(cuMemAllocManaged, &managed, kSlabBytes, CU_MEM_ATTACH_GLOBAL);
  CUDA_OK(cuMemAllocAsync, &pooled, kSlabBytes, nullptr);
  CUDA_OK(cuMemAllocHost_v2, &host, 4096);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle, &handle, managed);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle, &handle, pooled);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle, &handle,
          reinterpret_cast<CUdeviceptr>(host));
}

RULE_TEST(IpcMemoryTest, FlagsAreChecked, "the only flag is lazy peer access", kOpenSource) {
  OtherProcess other;
  const CUipcMemHandle handle = HandleOf(Allocate(kSlabBytes));
  EXPECT_EQ(other.Open(handle, 2).result, CUDA_ERROR_INVALID_VALUE);
  CUipcMemHandle nonsense;
  std::memset(&nonsense, 0x5a, sizeof nonsense);
  EXPECT_NE(other.Open(nonsense, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS).result, CUDA_SUCCESS);
}

RULE_TEST(IpcMemoryTest, ImportedMemoryIsNotFreedButClosed,
          "memory of cuIpcOpenMemHandle is given back by cuIpcCloseMemHandle", kOpenSource) {
  OtherProcess other;
  const Reply opened =
      other.Open(HandleOf(Allocate(kSlabBytes)), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  EXPECT_EQ(other.Free(opened.value).result, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(other.Close(opened.value).result, CUDA_SUCCESS);
}

// The driver's documentation leaves open what an importer has after the exporter freed the memory.
RULE_TEST(IpcMemoryTest, AnImporterKeepsWhatTheExporterFreedOrDiedWith,
          "an importer keeps the memory, and its charge, when the exporter frees it or dies",
          "docs/design/simulated-gpu.md; undefined by cuIpcOpenMemHandle") {
  SIMULATED_ONLY("undefined on a GPU");
  OtherProcess exporter;
  const uint64_t before = FreeBytes();
  for (const bool dies : {false, true}) {
    const CUdeviceptr theirs = exporter.Allocate(4 * kMiB).value;
    ASSERT_EQ(exporter.Write(theirs, 21).result, CUDA_SUCCESS);
    CUipcMemHandle handle;
    std::memcpy(handle.reserved, exporter.Export(theirs).handle, sizeof handle.reserved);
    CUdeviceptr mine = 0;
    CUDA_OK(cuIpcOpenMemHandle_v2, &mine, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    EXPECT_EQ(FreeBytes(), before - 4 * kMiB);
    if (dies) {
      exporter.Kill();
    } else {
      ASSERT_EQ(exporter.Free(theirs).result, CUDA_SUCCESS);
    }
    EXPECT_EQ(ReadWord(mine), 21u);
    EXPECT_EQ(FreeBytes(), before - 4 * kMiB + (dies ? 512 * kMiB : 0));
    CUDA_OK(cuIpcCloseMemHandle, mine);
    EXPECT_EQ(FreeBytes(), before + (dies ? 512 * kMiB : 0));
  }
}

RULE_TEST(IpcMemoryTest, SmallAllocationsShareTheirSlabButNotTheirHandles,
          "allocations that share a slab have handles of their own, valid as long as they live",
          DRIVER_API("Memory Management, cuIpcGetMemHandle")) {
  SIMULATED_ONLY("how small allocations lie is the driver's own affair");
  const CUdeviceptr a = NewWord(1);
  const CUdeviceptr b = NewWord(2);
  const CUipcMemHandle of_a = HandleOf(a);
  const CUipcMemHandle of_b = HandleOf(b);
  OtherProcess other;
  const Reply at_a = other.Open(of_a, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  EXPECT_EQ(other.Read(at_a.value).value, 1u);
  CUDA_OK(cuMemFree_v2, a);
  EXPECT_EQ(other.Open(of_b, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS).result, CUDA_SUCCESS);
  EXPECT_EQ(other.Close(at_a.value).result, CUDA_SUCCESS);
  EXPECT_EQ(other.Open(of_a, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS).result, CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace prorata::conformance
