#pragma once

// What the processes of one stress tell each other: IPC handles in shared memory, descriptors of
// physical memory over sockets. A process may be killed at any instruction, so nobody ever waits
// for another here: a slot whose writer died is simply never used again.

#include <atomic>
#include <cstdint>
#include <random>

#include "generated/cuda_abi.h"

namespace prorata::stress {

inline constexpr uint32_t kMaxProcesses = 64;

class Exchange {
 public:
  // For so many processes, before they are forked. Ends the program when it cannot be made.
  explicit Exchange(uint32_t processes);
  // In the process with this number, after the fork.
  void Enter(uint32_t process) { process_ = process; }

  void Post(const CUipcMemHandle& handle, std::mt19937_64* random);
  // A handle that another process posted, perhaps of memory that is gone.
  bool Find(std::mt19937_64* random, CUipcMemHandle* handle);

  // To some other process; false: its socket is full, or nobody is there. The descriptor is the
  // caller's still.
  bool SendDescriptor(int fd, uint64_t bytes, std::mt19937_64* random);
  // The caller's to close; -1: none has come.
  int ReceiveDescriptor(uint64_t* bytes);
  // In whoever made it, when all processes have ended: a descriptor in a socket holds its memory.
  void CloseUnread();

 private:
  static constexpr uint32_t kSlots = 64;
  struct Slot {
    std::atomic<uint32_t> busy;
    uint32_t process;  // + 1; 0: empty
    CUipcMemHandle handle;
  };
  Slot* slots_ = nullptr;  // shared by all
  uint32_t processes_;
  uint32_t process_ = 0;
  int inbox_[kMaxProcesses] = {};
  int outbox_[kMaxProcesses] = {};  // to each process
};

}  // namespace prorata::stress
