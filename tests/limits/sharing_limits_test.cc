// Memory that two processes of a share hold: its maker pays, and when that one frees it or dies,
// whoever has it still. What one opens is free of charge.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "../conformance/other_process.h"
#include "limits.h"

namespace prorata::limits {
namespace {

using conformance::OtherProcess;
using conformance::Reply;

constexpr uint64_t kSharingBytes = 64 * kMib;
constexpr unsigned kLazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;

class SharingLimits : public LimitTest {
 protected:
  CUipcMemHandle HandleOf(CUdeviceptr address) {
    CUipcMemHandle handle{};
    EXPECT_EQ(CUDA(cuIpcGetMemHandle)(&handle, address), CUDA_SUCCESS);
    return handle;
  }
  CUdeviceptr Allocate(uint64_t bytes = kSharingBytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuMemAlloc_v2)(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  // Opens memory of 64 MiB that the other process made.
  CUdeviceptr OpenOf(OtherProcess* other, CUdeviceptr theirs) {
    CUipcMemHandle handle{};
    const Reply exported = other->Export(theirs);
    EXPECT_EQ(exported.result, CUDA_SUCCESS);
    std::copy(std::begin(exported.handle), std::end(exported.handle), handle.reserved);
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuIpcOpenMemHandle_v2)(&address, handle, kLazy), CUDA_SUCCESS);
    return address;
  }
  // Waits until so much can be had: what another member freed is room, though its own for now.
  static bool CanHave(uint64_t bytes) {
    CUdeviceptr address = 0;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (CUDA(cuMemAlloc_v2)(&address, bytes / kSlab * kSlab) != CUDA_SUCCESS) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return CUDA(cuMemFree_v2)(address) == CUDA_SUCCESS && FreeBecomes(bytes);
  }
  CUmemGenericAllocationHandle Import(int fd) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(CUDA(cuMemImportFromShareableHandle)(
                  &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_SUCCESS);
    return handle;
  }
};

// --- cuIpc* -------------------------------------------------------------------------------------

TEST_F(SharingLimits, IpcCloseMemHandleGivesBackNothing) {
  OtherProcess other;
  const CUdeviceptr mine = Allocate();
  const uint64_t free_bytes = Free();
  const CUipcMemHandle handle = HandleOf(mine);
  const Reply first = other.Open(handle, kLazy);
  const Reply second = other.Open(handle, kLazy);
  ASSERT_EQ(first.result, CUDA_SUCCESS);
  ASSERT_EQ(second.result, CUDA_SUCCESS);
  EXPECT_EQ(Free(), free_bytes);
  EXPECT_EQ(other.Close(first.value).result, CUDA_SUCCESS);
  EXPECT_EQ(other.Close(second.value).result, CUDA_SUCCESS);
  EXPECT_EQ(Free(), free_bytes);
  CUDA_OK(cuMemFree_v2, mine);
  EXPECT_TRUE(FreeBecomes(free_bytes + kSharingBytes)) << "nobody holds it any more";
}

TEST_F(SharingLimits, IpcOpenMemHandleFitsAFullShare) {
  OtherProcess other;
  const CUdeviceptr mine = Allocate();
  LeaveRoom(0);
  const Reply opened = other.Open(HandleOf(mine), kLazy);
  EXPECT_EQ(opened.result, CUDA_SUCCESS) << "the memory is charged already";
  EXPECT_EQ(other.Write(opened.value, 1).result, CUDA_SUCCESS);
  EXPECT_EQ(other.Close(opened.value).result, CUDA_SUCCESS);
  CUDA_OK(cuMemFree_v2, mine);
}

TEST_F(SharingLimits, IpcOpenMemHandleAfterAFree) {
  SKIP_UNLESS(!OnRealGpu(), "defined answer to a free of memory that another has open");
  OtherProcess other;
  const uint64_t empty = Free();
  const CUdeviceptr mine = Allocate();
  const Reply opened = other.Open(HandleOf(mine), kLazy);
  ASSERT_EQ(opened.result, CUDA_SUCCESS);
  CUDA_OK(cuMemFree_v2, mine);
  EXPECT_TRUE(FreeBecomes(empty - kSharingBytes)) << "the device has it still: " << empty - Free();
  // And a limit that it fills stops the next.
  LeaveRoom(4 * kMib);
  CUdeviceptr more = 0;
  Refused([&] { return CUDA(cuMemAlloc_v2)(&more, 8 * kMib); });
  GiveRoomBack();
  EXPECT_EQ(other.Close(opened.value).result, CUDA_SUCCESS);
  EXPECT_TRUE(CanHave(empty));
}

TEST_F(SharingLimits, IpcCloseMemHandleGivesBackWhatADeadOneMade) {
  SKIP_UNLESS(!OnRealGpu(), "defined answer to the death of who made the memory");
  const uint64_t empty = Free();
  CUdeviceptr theirs = 0;
  {
    OtherProcess other;
    const Reply made = other.Allocate(kSharingBytes);
    ASSERT_EQ(made.result, CUDA_SUCCESS);
    theirs = OpenOf(&other, made.value);
    other.Kill();
  }
  EXPECT_TRUE(FreeBecomes(empty - kSharingBytes)) << "now mine: " << empty - Free();
  LeaveRoom(4 * kMib);
  CUdeviceptr more = 0;
  Refused([&] { return CUDA(cuMemAlloc_v2)(&more, 8 * kMib); });
  GiveRoomBack();
  CUDA_OK(cuIpcCloseMemHandle, theirs);
  EXPECT_TRUE(CanHave(empty));
}

TEST_F(SharingLimits, IpcThirdProcessPaysWhenTwoAreGone) {
  SKIP_UNLESS(!OnRealGpu(), "defined answer to the death of who made the memory");
  const uint64_t empty = Free();
  CUdeviceptr mine = 0;
  {
    OtherProcess maker, second;
    const Reply made = maker.Allocate(kSharingBytes);
    const Reply exported = maker.Export(made.value);
    CUipcMemHandle handle{};
    std::copy(std::begin(exported.handle), std::end(exported.handle), handle.reserved);
    ASSERT_EQ(second.Open(handle, kLazy).result, CUDA_SUCCESS);
    CUDA_OK(cuIpcOpenMemHandle_v2, &mine, handle, kLazy);
    maker.Kill();
    second.Kill();
  }
  EXPECT_TRUE(FreeBecomes(empty - kSharingBytes)) << empty - Free();
  CUDA_OK(cuIpcCloseMemHandle, mine);
  EXPECT_TRUE(CanHave(empty));
}

TEST_F(SharingLimits, IpcSmallAllocationsAreTheirSlab) {
  SKIP_UNLESS(!OnRealGpu(), "defined answer to a free of memory that another has open");
  OtherProcess other;
  const uint64_t empty = Free();
  const CUdeviceptr mine = Allocate(1000);
  const Reply opened = other.Open(HandleOf(mine), kLazy);
  ASSERT_EQ(opened.result, CUDA_SUCCESS);
  CUDA_OK(cuMemFree_v2, mine);
  EXPECT_TRUE(FreeBecomes(empty - kSlab)) << empty - Free();
  EXPECT_EQ(other.Close(opened.value).result, CUDA_SUCCESS);
  EXPECT_TRUE(CanHave(empty));
}

TEST_F(SharingLimits, IpcADestroyedContextClosesWhatItOpened) {
  OtherProcess other;
  const Reply made = other.Allocate(kSharingBytes);
  const uint64_t free_bytes = Free();
  CUcontext second = nullptr;
  CUDA_OK(cuCtxCreate_v2, &second, 0, device_);
  OpenOf(&other, made.value);
  CUDA_OK(cuCtxDestroy_v2, second);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  EXPECT_TRUE(FreeBecomes(free_bytes));
  EXPECT_EQ(other.Free(made.value).result, CUDA_SUCCESS);
  EXPECT_TRUE(CanHave(free_bytes + kSharingBytes));
}

// --- Descriptors --------------------------------------------------------------------------------

TEST_F(SharingLimits, MemImportFromShareableHandleFreeOfCharge) {
  SKIP_UNLESS(!OnRealGpu(), "descriptors that can be told apart: an import is charged by mapping");
  OtherProcess other;
  const Reply made = other.CreatePhysical(kSharingBytes);
  ASSERT_EQ(made.result, CUDA_SUCCESS);
  LeaveRoom(0);
  const uint64_t free_bytes = Free();
  const CUmemGenericAllocationHandle handle = Import(made.fd);
  CUdeviceptr address = 0;
  CUDA_OK(cuMemAddressReserve, &address, kSharingBytes, 0, 0, 0);
  CUDA_OK(cuMemMap, address, kSharingBytes, 0, handle, 0);
  EXPECT_EQ(Free(), free_bytes);
  CUDA_OK(cuMemUnmap, address, kSharingBytes);
  CUDA_OK(cuMemAddressFree, address, kSharingBytes);
  CUDA_OK(cuMemRelease, handle);
  EXPECT_EQ(Free(), free_bytes);
  close(made.fd);
}

TEST_F(SharingLimits, MemImportFromShareableHandleChargePasses) {
  SKIP_UNLESS(!OnRealGpu(), "descriptors that can be told apart: an import is charged by mapping");
  const uint64_t empty = Free();
  CUmemGenericAllocationHandle handle = 0;
  {
    OtherProcess other;
    const Reply made = other.CreatePhysical(kSharingBytes);
    ASSERT_EQ(made.result, CUDA_SUCCESS);
    handle = Import(made.fd);
    close(made.fd);
    other.Kill();
  }
  EXPECT_TRUE(FreeBecomes(empty - kSharingBytes)) << empty - Free();
  LeaveRoom(4 * kMib);
  CUdeviceptr more = 0;
  Refused([&] { return CUDA(cuMemAlloc_v2)(&more, 8 * kMib); });
  GiveRoomBack();
  CUDA_OK(cuMemRelease, handle);
  EXPECT_TRUE(CanHave(empty));
}

TEST_F(SharingLimits, MemImportFromShareableHandleOfItsOwnIsOneCharge) {
  const uint64_t empty = Free();
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle made = 0;
  CUDA_OK(cuMemCreate, &made, kSharingBytes, &prop, 0);
  int fd = -1;
  CUDA_OK(cuMemExportToShareableHandle, &fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  const CUmemGenericAllocationHandle again = Import(fd);
  close(fd);
  EXPECT_TRUE(FreeBecomes(empty - kSharingBytes));
  CUDA_OK(cuMemRelease, made);
  EXPECT_TRUE(FreeBecomes(empty - kSharingBytes)) << "the import holds it";
  CUDA_OK(cuMemRelease, again);
  EXPECT_TRUE(CanHave(empty));
}

// --- Pools --------------------------------------------------------------------------------------

class SharedPool {
 public:
  explicit SharedPool(CUdevice device) {
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    EXPECT_EQ(CUDA(cuMemPoolCreate)(&pool, &props), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemPoolExportToShareableHandle)(&fd, pool,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemAllocFromPoolAsync)(&address, kSharingBytes, pool, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuStreamSynchronize)(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemPoolExportPointer)(&data, address), CUDA_SUCCESS);
  }
  ~SharedPool() {
    close(fd);
    EXPECT_EQ(CUDA(cuMemFreeAsync)(address, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuStreamSynchronize)(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuMemPoolDestroy)(pool), CUDA_SUCCESS);
  }
  CUmemoryPool pool = nullptr;
  int fd = -1;
  CUdeviceptr address = 0;
  CUmemPoolPtrExportData data{};
};

TEST_F(SharingLimits, MemPoolImportPointerFreeOfCharge) {
  OtherProcess other;
  const uint64_t empty = Free();
  {
    SharedPool shared(device_);
    const uint64_t free_bytes = Free();
    EXPECT_LT(free_bytes, empty);
    const Reply pool = other.ImportPool(shared.fd);
    ASSERT_EQ(pool.result, CUDA_SUCCESS);
    const Reply pointer = other.ImportPointer(pool.value, shared.data);
    ASSERT_EQ(pointer.result, CUDA_SUCCESS);
    EXPECT_EQ(Free(), free_bytes);
    EXPECT_EQ(other.FreeAsync(pointer.value).result, CUDA_SUCCESS);
    EXPECT_TRUE(FreeBecomes(free_bytes));
  }
  EXPECT_TRUE(CanHave(empty));
}

TEST_F(SharingLimits, MemPoolImportPointerFitsAFullShare) {
  OtherProcess other;
  SharedPool shared(device_);
  LeaveRoom(0);
  const Reply pool = other.ImportPool(shared.fd);
  ASSERT_EQ(pool.result, CUDA_SUCCESS);
  const Reply pointer = other.ImportPointer(pool.value, shared.data);
  EXPECT_EQ(pointer.result, CUDA_SUCCESS) << "the memory is charged already";
  EXPECT_EQ(other.FreeAsync(pointer.value).result, CUDA_SUCCESS);
}

TEST_F(SharingLimits, MemPoolImportPointerChargePasses) {
  SKIP_UNLESS(!OnRealGpu(), "defined answer to a free of memory that another has open");
  OtherProcess other;
  const uint64_t empty = Free();
  Reply pointer;
  {
    SharedPool shared(device_);
    const Reply pool = other.ImportPool(shared.fd);
    ASSERT_EQ(pool.result, CUDA_SUCCESS);
    pointer = other.ImportPointer(pool.value, shared.data);
    ASSERT_EQ(pointer.result, CUDA_SUCCESS);
  }
  EXPECT_TRUE(FreeBecomes(empty - kSharingBytes)) << empty - Free();
  LeaveRoom(4 * kMib);
  CUdeviceptr more = 0;
  Refused([&] { return CUDA(cuMemAlloc_v2)(&more, 8 * kMib); });
  GiveRoomBack();
  EXPECT_EQ(other.FreeAsync(pointer.value).result, CUDA_SUCCESS);
  EXPECT_TRUE(CanHave(empty));
}

}  // namespace
}  // namespace prorata::limits
