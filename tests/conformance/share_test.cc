// Events, physical memory and pools of another process.

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "conformance.h"
#include "other_process.h"

namespace prorata::conformance {
namespace {

constexpr uint64_t kSlab = 2 * kMiB;

// --- Events -------------------------------------------------------------------------------------

class IpcEventTest : public DriverTest {
 protected:
  static constexpr unsigned kFlags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  static CUipcEventHandle Named(const Reply& exported) {
    CUipcEventHandle handle;
    std::memcpy(handle.reserved, exported.handle, sizeof handle.reserved);
    return handle;
  }
};

RULE_TEST(IpcEventTest, AnotherProcessWaitsForIt,
          "an event that another process opened tells it when the exporter's work is done",
          "CUDA Driver API, Memory Management, cuIpcOpenEventHandle") {
  const CUevent event = NewEvent(kFlags);
  CUipcEventHandle handle;
  CUDA_OK(cuIpcGetEventHandle, &handle, event);
  OtherProcess other;
  const Reply opened = other.OpenEvent(handle);
  ASSERT_EQ(opened.result, CUDA_SUCCESS);
  EXPECT_EQ(other.Query(opened.value).result, CUDA_SUCCESS) << "never recorded";
  const CUstream stream = NewStream();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, stream);
  EXPECT_EQ(other.Query(opened.value).result, CUDA_ERROR_NOT_READY);
  gate.Open();
  EXPECT_EQ(other.SynchronizeEvent(opened.value).result, CUDA_SUCCESS);
  EXPECT_EQ(other.DestroyEvent(opened.value).result, CUDA_SUCCESS);
  CUDA_OK(cuEventQuery, event);
}

RULE_TEST(IpcEventTest, ItOrdersKernelsOfTwoProcesses,
          "work of one process that waits for another's event sees what that one's kernels wrote",
          "CUDA Driver API, Memory Management, cuIpcGetEventHandle") {
  CUdeviceptr mine = 0;
  CUDA_OK(cuMemAlloc_v2, &mine, kSlab);
  CUipcMemHandle memory;
  CUDA_OK(cuIpcGetMemHandle, &memory, mine);
  const CUevent event = NewEvent(kFlags);
  CUipcEventHandle handle;
  CUDA_OK(cuIpcGetEventHandle, &handle, event);
  OtherProcess other;
  const Reply address = other.Open(memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  const Reply opened = other.OpenEvent(handle);
  const CUstream stream = NewStream();
  for (uint64_t round = 0; round < 10; ++round) {
    CUDA_OK(cuMemsetD32Async, mine, 1, 2, stream);
    CUDA_OK(cuMemsetD32Async, mine + 4, 0, 1, stream);
    ASSERT_EQ(Step(stream, mine, 1, 4 + round, 200'000), CUDA_SUCCESS);
    CUDA_OK(cuEventRecord, event, stream);
    ASSERT_EQ(other.Wait(opened.value).result, CUDA_SUCCESS);
    ASSERT_EQ(other.Step(address.value, 10, 0, 1000).result, CUDA_SUCCESS);
    ASSERT_EQ(other.Synchronize().result, CUDA_SUCCESS);
    ASSERT_EQ(ReadWord(mine), 10 * (5 + round));
  }
}

RULE_TEST(IpcEventTest, TheOpenerMayRecordIt,
          "the process that opened an event may record it, and the exporter waits for that",
          "CUDA Driver API, Memory Management, cuIpcOpenEventHandle") {
  OtherProcess exporter;
  const Reply theirs = exporter.CreateEvent(kFlags);
  CUevent event = nullptr;
  CUDA_OK(cuIpcOpenEventHandle, &event, Named(exporter.ExportEvent(theirs.value)));
  const CUstream stream = NewStream();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, stream);
  EXPECT_EQ(exporter.Query(theirs.value).result, CUDA_ERROR_NOT_READY);
  gate.Open();
  EXPECT_EQ(exporter.SynchronizeEvent(theirs.value).result, CUDA_SUCCESS);
}

RULE_TEST(IpcEventTest, OnlyInterprocessEventsHaveHandles,
          "an event needs CU_EVENT_INTERPROCESS to be exported, and with it DISABLE_TIMING",
          "CUDA Driver API, Memory Management, cuIpcGetEventHandle") {
  CUipcEventHandle handle;
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle, &handle,
          NewEvent(CU_EVENT_DISABLE_TIMING));
  CUevent timed = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuEventCreate, &timed, CU_EVENT_INTERPROCESS);
}

RULE_TEST(IpcEventTest, AnOpenedEventHasNoTimes,
          "opened events behave as made with CU_EVENT_DISABLE_TIMING",
          "CUDA Driver API, Memory Management, cuIpcOpenEventHandle") {
  OtherProcess exporter;
  const Reply theirs = exporter.CreateEvent(kFlags);
  CUevent event = nullptr;
  CUDA_OK(cuIpcOpenEventHandle, &event, Named(exporter.ExportEvent(theirs.value)));
  const CUstream stream = NewStream();
  CUDA_OK(cuEventRecord, event, stream);
  CUDA_OK(cuEventSynchronize, event);
  float ms = 0;
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2, &ms, event, event);
}

RULE_TEST(IpcEventTest, AnOpenedEventOutlivesItsExporter,
          "an opened event can be waited for and recorded when the process that made it is dead",
          "docs/design/simulated-gpu.md; undefined by cuIpcOpenEventHandle") {
  SIMULATED_ONLY("undefined on a GPU");
  OtherProcess exporter;
  const Reply theirs = exporter.CreateEvent(kFlags);
  CUevent event = nullptr;
  CUDA_OK(cuIpcOpenEventHandle, &event, Named(exporter.ExportEvent(theirs.value)));
  ASSERT_EQ(exporter.Record(theirs.value).result, CUDA_SUCCESS);
  exporter.Kill();
  CUDA_OK(cuEventSynchronize, event);
  const CUstream stream = NewStream();
  CUDA_OK(cuEventRecord, event, stream);
  CUDA_OK(cuEventSynchronize, event);
  CUDA_OK(cuEventDestroy_v2, event);
}

// --- Physical memory ----------------------------------------------------------------------------

constexpr const char* kExportSource =
    "CUDA Driver API, Virtual Memory Management, cuMemExportToShareableHandle";
constexpr const char* kImportSource =
    "CUDA Driver API, Virtual Memory Management, cuMemImportFromShareableHandle";

class ShareableMemoryTest : public DriverTest {
 protected:
  static constexpr CUmemAllocationHandleType kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

  CUmemGenericAllocationHandle Create(uint64_t bytes, CUmemAllocationHandleType type = kFd) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    prop.requestedHandleTypes = type;
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(CUDA(cuMemCreate)(&handle, bytes, &prop, 0), CUDA_SUCCESS);
    return handle;
  }
  CUdeviceptr Map(CUmemGenericAllocationHandle handle, uint64_t bytes) {
    CUdeviceptr address = 0;
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_EQ(CUDA(cuMemAddressReserve)(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemMap)(address, bytes, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemSetAccess)(address, bytes, &access, 1), CUDA_SUCCESS);
    return address;
  }
  int Export(CUmemGenericAllocationHandle handle) {
    int fd = -1;
    EXPECT_EQ(CUDA(cuMemExportToShareableHandle)(&fd, handle, kFd, 0), CUDA_SUCCESS);
    return fd;
  }
};

RULE_TEST(ShareableMemoryTest, ADescriptorCarriesTheMemory,
          "physical memory exported as a file descriptor is mapped in the process that imports it",
          kImportSource) {
  const CUmemGenericAllocationHandle handle = Create(2 * kSlab);
  const CUdeviceptr mine = Map(handle, 2 * kSlab);
  const int fd = Export(handle);
  OtherProcess other;
  const Reply mapped = other.ImportPhysical(fd, 2 * kSlab);
  ASSERT_EQ(mapped.result, CUDA_SUCCESS);
  EXPECT_EQ(other.Write(mapped.value + kSlab, 77).result, CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(mine + kSlab), 77u);
  close(fd);
}

RULE_TEST(ShareableMemoryTest, TheMemoryLivesAsLongAsAnyReference,
          "memory is freed when all handles, mappings and shareable counterparts are gone",
          "CUDA Driver API, Virtual Memory Management, cuMemRelease") {
  const uint64_t before = FreeBytes();
  const CUmemGenericAllocationHandle handle = Create(kSlab);
  const int fd = Export(handle);
  CUDA_OK(cuMemRelease, handle);
  EXPECT_EQ(FreeBytes(), before - kSlab) << "the descriptor holds it";
  CUmemGenericAllocationHandle again = 0;
  CUDA_OK(cuMemImportFromShareableHandle, &again, reinterpret_cast<void*>(intptr_t{fd}), kFd);
  close(fd);
  EXPECT_EQ(FreeBytes(), before - kSlab) << "the imported handle holds it";
  CUDA_OK(cuMemRelease, again);
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(ShareableMemoryTest, AnExportersDeathLeavesItToTheImporter,
          "memory is freed when all handles, mappings and shareable counterparts are gone",
          "CUDA Driver API, Virtual Memory Management, cuMemRelease") {
  OtherProcess exporter;
  const Reply made = exporter.CreatePhysical(kSlab);
  ASSERT_EQ(made.result, CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  CUDA_OK(cuMemImportFromShareableHandle, &handle, reinterpret_cast<void*>(intptr_t{made.fd}), kFd);
  close(made.fd);
  exporter.Kill();
  const CUdeviceptr mine = Map(handle, kSlab);
  const uint64_t word = 8;
  CUDA_OK(cuMemcpyHtoD_v2, mine, &word, sizeof word);
  EXPECT_EQ(ReadWord(mine), 8u);
  CUDA_OK(cuMemRelease, handle);
  const uint64_t before = FreeBytes();
  CUDA_OK(cuMemUnmap, mine, kSlab);
  EXPECT_EQ(FreeBytes(), before + kSlab);
}

RULE_TEST(ShareableMemoryTest, TheTypeMustHaveBeenAskedFor,
          "memory can be exported as the handle types that it was created with", kExportSource) {
  const CUmemGenericAllocationHandle handle = Create(kSlab, CU_MEM_HANDLE_TYPE_NONE);
  int fd = -1;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle, &fd, handle, kFd, 0);
  CUDA_OK(cuMemRelease, handle);
}

RULE_TEST(ShareableMemoryTest, AnythingElseIsNoHandle,
          "importing what is not a shareable handle fails", kImportSource) {
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_NE(
      CUDA(cuMemImportFromShareableHandle)(&handle, reinterpret_cast<void*>(intptr_t{fd}), kFd),
      CUDA_SUCCESS);
  close(fd);
}

// --- Pools --------------------------------------------------------------------------------------

class ShareablePoolTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUDA_OK(cuMemPoolCreate, &pool_, &props);
    CUDA_OK(cuMemPoolExportToShareableHandle, &fd_, pool_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            0);
  }
  void TearDown() override {
    if (fd_ >= 0) close(fd_);
    if (pool_) CUDA(cuMemPoolDestroy)(pool_);
    DriverTest::TearDown();
  }
  CUdeviceptr Allocate(uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuMemAllocFromPoolAsync)(&address, bytes, pool_, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuStreamSynchronize)(nullptr), CUDA_SUCCESS);
    return address;
  }

  CUmemoryPool pool_ = nullptr;
  int fd_ = -1;
};

RULE_TEST(ShareablePoolTest, PointersOfAnImportedPoolAreTheExportersMemory,
          "an allocation of an exported pool is reached by its pointer's export data",
          "CUDA Driver API, Stream Ordered Memory Allocator, cuMemPoolImportPointer") {
  const CUdeviceptr mine = Allocate(kMiB);
  CUmemPoolPtrExportData data;
  CUDA_OK(cuMemPoolExportPointer, &data, mine);
  OtherProcess other;
  const Reply pool = other.ImportPool(fd_);
  ASSERT_EQ(pool.result, CUDA_SUCCESS);
  const Reply theirs = other.ImportPointer(pool.value, data);
  ASSERT_EQ(theirs.result, CUDA_SUCCESS);
  EXPECT_EQ(other.Write(theirs.value, 31).result, CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(mine), 31u);
  EXPECT_EQ(other.FreeAsync(theirs.value).result, CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(mine), 31u) << "freed by the importer only";
  CUDA_OK(cuMemFreeAsync, mine, nullptr);
}

RULE_TEST(ShareablePoolTest, AnImportedPoolGivesOutNothing,
          "imported memory pools do not support creating new allocations",
          "CUDA Driver API, Stream Ordered Memory Allocator, cuMemPoolImportFromShareableHandle") {
  OtherProcess other;
  const Reply pool = other.ImportPool(fd_);
  ASSERT_EQ(pool.result, CUDA_SUCCESS);
  EXPECT_NE(other.AllocateFrom(pool.value, kMiB).result, CUDA_SUCCESS);
}

RULE_TEST(ShareablePoolTest, APoolWithoutHandleTypesIsNotExported,
          "a pool is exported as the handle types that it was created with",
          "CUDA Driver API, Stream Ordered Memory Allocator, cuMemPoolExportToShareableHandle") {
  CUmemoryPool pool = nullptr;
  CUDA_OK(cuDeviceGetDefaultMemPool, &pool, 0);
  int fd = -1;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportToShareableHandle, &fd, pool,
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

}  // namespace
}  // namespace prorata::conformance
