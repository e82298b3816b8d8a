#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "generated/cuda_abi.h"

namespace prorata::simgpu::driver {

// Context-local storage: where cudart keeps its state of a context (export table c693336e-...).
// Every runtime call asks for it about once.
//
// When a context goes, its entries must go first and their destructors run: without that cudart
// keeps dead state and never retains the primary context again (seen with 11.8 to 13.0).
// Thread-safe. Destructors run without the lock: they may come back.
class ContextStorage {
 public:
  using Destructor = void (*)(CUcontext ctx, void* key, void* value);

  CUresult Put(CUcontext ctx, void* key, void* value, Destructor destructor);
  // CUDA_ERROR_INVALID_HANDLE when there is no such entry: success with a null value crashes
  // cudart 11.8 and 12.4.
  CUresult Get(void** value, CUcontext ctx, void* key);
  CUresult Delete(CUcontext ctx, void* key);
  void DropContext(CUcontext ctx);

 private:
  struct Entry {
    void* value;
    Destructor destructor;
  };
  std::mutex mutex_;
  std::map<std::pair<CUcontext, void*>, Entry> entries_;
};

}  // namespace prorata::simgpu::driver
