#pragma once

// A second process on the same machine, with its own driver, that does one call at a time for a
// test: so a test of what two processes do together reads from top to bottom.
//
//   OtherProcess other;
//   EXPECT_EQ(other.Open(handle, 0).result, CUDA_SUCCESS);
//
// It runs this very program; death of the test ends it.

#include <sys/types.h>

#include <cstdint>

#include "generated/cuda_abi.h"

namespace prorata::conformance {

struct Reply {
  CUresult result = CUDA_ERROR_UNKNOWN;  // UNKNOWN too when it died over the call
  uint64_t value = 0;
  char handle[64] = {};
  int fd = -1;  // the receiver's to close
};

class OtherProcess {
 public:
  // With a context on that device, current. Fails the test when it cannot be started.
  explicit OtherProcess(int device = 0);
  ~OtherProcess();  // killed
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Kill();  // and waits until it is gone

  // Memory. `value` is the address.
  Reply Allocate(uint64_t bytes);
  Reply Free(CUdeviceptr address);
  Reply Read(CUdeviceptr address);  // value: the word
  Reply Write(CUdeviceptr address, uint64_t word);
  Reply FreeBytes();
  // A kernel of the other process: *address = *address * factor + term, `ns` of device time. Does
  // not wait. On the stream that its events use.
  Reply Step(CUdeviceptr address, uint64_t factor, uint64_t term, uint64_t ns);
  Reply Synchronize();

  // IPC.
  Reply Export(CUdeviceptr address);  // handle
  Reply Open(const CUipcMemHandle& handle, unsigned flags);
  Reply Close(CUdeviceptr address);
  Reply RangeBytes(CUdeviceptr address);
  Reply NewContext();  // another one on the same device, current from now on
  Reply CreateEvent(unsigned flags);
  Reply ExportEvent(uint64_t event);
  Reply OpenEvent(const CUipcEventHandle& handle);
  Reply Record(uint64_t event);
  Reply Wait(uint64_t event);
  Reply Query(uint64_t event);
  Reply SynchronizeEvent(uint64_t event);
  Reply DestroyEvent(uint64_t event);

  // Virtual memory and pools, by descriptors.
  Reply CreatePhysical(uint64_t bytes);          // fd; value: its handle
  Reply ImportPhysical(int fd, uint64_t bytes);  // value: where it is mapped
  Reply DropImported(CUdeviceptr address, uint64_t bytes);
  Reply ImportPool(int fd);  // value: the pool
  Reply ImportPointer(uint64_t pool, const CUmemPoolPtrExportData& data);
  Reply FreeAsync(CUdeviceptr address);
  Reply AllocateFrom(uint64_t pool, uint64_t bytes);

 private:
  friend int ServeOtherProcess(int socket, int device);
  enum class Op : uint32_t;
  struct Request;
  struct Server;
  Reply Ask(const Request& request, int fd = -1);

  pid_t pid_ = -1;
  int socket_ = -1;
};

// The other process's main.
int ServeOtherProcess(int socket, int device);

// Descriptors over a socket; -1 for none.
bool SendWithFd(int socket, const void* bytes, size_t size, int fd);
bool ReceiveWithFd(int socket, void* bytes, size_t size, int* fd);

}  // namespace prorata::conformance
