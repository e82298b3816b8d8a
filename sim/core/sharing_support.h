#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <memory>
#include <new>
#include <string>

#include "sim/core/kill_support.h"

// What the tests of processes that share memory and events have in common.

namespace prorata::simgpu {

inline constexpr uint64_t kContextBytes = 16 * kMiB;

// Memory that forked processes see alike.
template <typename T>
class Board {
 public:
  Board() {
    void* memory =
        mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board_ = new (memory) T{};
  }
  ~Board() { munmap(board_, sizeof(T)); }
  T* operator->() { return board_; }

 private:
  T* board_;
};

struct Party {
  std::unique_ptr<Machine> machine;
  Handle process = 0;
  Handle context = 0;
  Handle stream = 0;

  explicit Party(const std::string& folder) {
    machine = *Machine::Attach(SmallMachine(), folder);
    process = machine->RegisterProcess().value();
    // In a chaos test others may hold all of the device for a while.
    while (context == 0) context = machine->CreateContext(process, 0).value_or(0);
    stream = machine->CreateStream(context, StreamKind::kBlocking).value();
  }
  // With bytes in it that nobody else may ever read.
  SharedMemory Share(uint64_t bytes) {
    const auto extents = machine->AllocSlabs(context, bytes).value();
    Soil(*machine, 0, extents);
    return machine->ShareSlabs(context, extents).value();
  }
  ShareName Export(const SharedMemory& memory) {
    return machine->ExportAddress(memory.share, 0, memory.length_bytes).value();
  }
};

inline uint64_t UsedBy(Machine& machine, int pid) {
  const DeviceUsage usage = *machine.Usage(0);
  uint64_t sum = 0;
  uint64_t used = 0;
  for (const ProcessUsage& process : usage.processes) {
    sum += process.used_bytes;
    if (process.pid == pid) used = process.used_bytes;
  }
  EXPECT_EQ(sum, usage.used_bytes) << "the accounts do not add up";
  return used;
}

// Pages of the device's memory that hold anything.
inline int64_t TouchedBlocks(const Machine& machine) {
  struct stat info{};
  EXPECT_EQ(fstat(machine.memory_fd(0), &info), 0);
  return info.st_blocks;
}

}  // namespace prorata::simgpu
