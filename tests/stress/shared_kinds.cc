// Physical memory, and what processes hand to each other.

#include <unistd.h>

#include "kinds.h"

namespace prorata::stress {

CUmemAllocationProp PhysicalProperties(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

std::optional<Held> Map(Worker& w, CUmemGenericAllocationHandle handle, uint64_t bytes) {
  const Driver& driver = w.driver;
  CUdeviceptr address = 0;
  if (!w.Try(driver.cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve")) {
    w.Must(driver.cuMemRelease(handle), "cuMemRelease");
    return {};
  }
  if (!w.Try(driver.cuMemMap(address, bytes, 0, handle, 0), "cuMemMap")) {
    w.Must(driver.cuMemAddressFree(address, bytes), "cuMemAddressFree");
    w.Must(driver.cuMemRelease(handle), "cuMemRelease");
    return {};
  }
  CUmemAccessDesc access = {};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, w.device};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  w.Try(driver.cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
  const bool at_once = w.OneIn(3);
  if (at_once) w.Must(driver.cuMemRelease(handle), "cuMemRelease");
  return Held{[&w, handle, address, bytes, at_once] {
    w.Must(w.driver.cuMemUnmap(address, bytes), "cuMemUnmap");
    w.Must(w.driver.cuMemAddressFree(address, bytes), "cuMemAddressFree");
    if (!at_once) w.Must(w.driver.cuMemRelease(handle), "cuMemRelease");
  }};
}

std::optional<Held> IpcExport(Worker& w) {
  CUdeviceptr address = 0;
  const uint64_t bytes = w.OneIn(4) ? w.Bytes() : Slabs(w.Bytes());
  if (!w.Try(w.driver.cuMemAlloc_v2(&address, bytes), "cuMemAlloc")) return {};
  CUipcMemHandle handle;
  if (w.Try(w.driver.cuIpcGetMemHandle(&handle, address), "cuIpcGetMemHandle")) {
    w.exchange.Post(handle, &w.random);
  }
  return Held{[&w, address] { w.Must(w.driver.cuMemFree_v2(address), "cuMemFree"); }};
}

// What was posted may be freed by now, or its process be gone.
std::optional<Held> IpcImport(Worker& w) {
  CUipcMemHandle handle;
  if (!w.exchange.Find(&w.random, &handle)) return {};
  CUdeviceptr address = 0;
  if (!w.Try(w.driver.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
             "cuIpcOpenMemHandle",
             {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT})) {
    return {};
  }
  return Held{
      [&w, address] { w.Must(w.driver.cuIpcCloseMemHandle(address), "cuIpcCloseMemHandle"); }};
}

std::optional<Held> VmmExport(Worker& w) {
  CUmemAllocationProp properties = PhysicalProperties(w.device);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const uint64_t bytes = Slabs(w.Bytes());
  CUmemGenericAllocationHandle handle = 0;
  if (!w.Try(w.driver.cuMemCreate(&handle, bytes, &properties, 0), "cuMemCreate")) return {};
  int fd = -1;
  if (w.Try(w.driver.cuMemExportToShareableHandle(&fd, handle,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            "cuMemExportToShareableHandle")) {
    w.exchange.SendDescriptor(fd, bytes, &w.random);
    ::close(fd);
  }
  return Map(w, handle, bytes);
}

std::optional<Held> VmmImport(Worker& w) {
  uint64_t bytes = 0;
  const int fd = w.exchange.ReceiveDescriptor(&bytes);
  if (fd < 0) return {};
  CUmemGenericAllocationHandle handle = 0;
  const bool imported = w.Try(w.driver.cuMemImportFromShareableHandle(
                                  &handle, reinterpret_cast<void*>(static_cast<uintptr_t>(fd)),
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                              "cuMemImportFromShareableHandle",
                              {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE});
  ::close(fd);
  if (!imported) return {};
  return Map(w, handle, bytes);
}

}  // namespace prorata::stress
