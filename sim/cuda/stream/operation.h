#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "generated/cuda_abi.h"
#include "sim/core/types.h"
#include "sim/cuda/state.h"

// What can be put on a stream, or into a graph as a node: one description for both, so that a
// captured operation and its replay do what the call itself would have done.

namespace prorata::simgpu::driver {

struct KernelCall {
  std::shared_ptr<Function> function;
  std::shared_ptr<Module> module;  // its code must outlive the launch, unloaded or not
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  bool cooperative = false;
  // The launch's own copy of its parameters, one behind the other, and where each begins. Empty
  // when the function's parameters are not known; nothing reads them then.
  std::vector<uint64_t> parameter_bytes;
  std::vector<uint32_t> parameter_offsets;
};

// A box of bytes from one place to another; 1D copies are one row.
struct CopyCall {
  WorkKind direction = WorkKind::kHost;  // kHost: between host addresses
  int from_device = 0;                   // kCopyToPeer: devices of the machine
  int to_device = 0;
  uint64_t dst = 0;  // of the first byte
  uint64_t src = 0;
  size_t dst_pitch = 0;
  size_t src_pitch = 0;
  size_t dst_slice = 0;  // bytes from one layer to the next
  size_t src_slice = 0;
  size_t width = 0;  // bytes
  size_t height = 1;
  size_t depth = 1;
  // The bytes of a pageable source, taken when the call was made; used in place of src.
  std::shared_ptr<std::vector<uint8_t>> staged;

  uint64_t bytes() const { return uint64_t{width} * height * depth; }
};

struct FillCall {
  uint64_t dst = 0;
  size_t pitch = 0;
  unsigned value = 0;
  unsigned element_bytes = 1;  // 1, 2 or 4
  size_t width = 0;            // elements
  size_t height = 1;
  // Captured with an address that was no memory: whoever records a plan may name that later. Looked
  // at when it runs.
  bool placeholder = false;

  uint64_t bytes() const { return uint64_t{width} * element_bytes * height; }
};

struct HostCall {
  CUhostFn function = nullptr;
  CUstreamCallback callback = nullptr;  // the older kind; one of the two is set
  CUstream stream = nullptr;            // the status that the older kind gets
  void* user_data = nullptr;
};

struct RecordCall {
  EventRef event;
};

struct WaitCall {
  EventRef event;
};

// A 32 or 64 bit word that is written or waited for in stream order.
struct ValueCall {
  bool wait = false;
  bool wide = false;
  uint64_t address = 0;
  uint64_t value = 0;
  unsigned condition = 0;  // CU_STREAM_WAIT_VALUE_*
};

// Several of them, one behind the other.
struct BatchCall {
  std::vector<ValueCall> calls;
  std::vector<CUstreamBatchMemOpParams> params;  // as the program said it
};

// A node that only orders others; a child graph is flattened into its nodes.
struct EmptyCall {};

// Memory of a graph: allocated when the node is made, so that its address is known at once.
struct GraphAllocCall {
  uint64_t address = 0;
  uint64_t bytes = 0;
};
struct GraphFreeCall {
  uint64_t address = 0;
};

// Memory put behind tiles of sparse arrays, or taken away (sparse.h). Never in a graph.
struct TilesCall {
  uint64_t number = 0;
};

using StreamOp = std::variant<EmptyCall, KernelCall, CopyCall, FillCall, HostCall, RecordCall,
                              WaitCall, BatchCall, GraphAllocCall, GraphFreeCall, TilesCall>;

// What the machine is to do for the operation in that stream, with the action registered that does
// the rest. Needs D().mutex not held. Fails only when the executor thread cannot be started.
CUresult MakeWork(const Stream& stream, const StreamOp& operation, std::vector<Work>* work);

// Puts work at the end of the stream, waiting for room if its queue is full. D().mutex not held.
// On failure the actions in it are forgotten.
CUresult SubmitWork(const StreamRef& stream, const std::vector<Work>& work,
                    uint64_t* sequence = nullptr);

// The same with stream->order held by the caller.
CUresult SubmitOrdered(const StreamRef& stream, const std::vector<Work>& work, uint64_t* sequence);
// Forgets the actions of work that is not to be submitted.
void ForgetWork(std::span<const Work> work);

// Captures the operation if the stream is capturing, else submits it. D().mutex not held.
CUresult Enqueue(const StreamRef& stream, StreamOp operation, uint64_t* sequence = nullptr);
// Enqueue, then waits until it is finished. An error while capturing.
CUresult EnqueueAndWait(const StreamRef& stream, StreamOp operation);

// Calls the program's function; CUDA calls are refused meanwhile. `error`: of the context.
void RunHostCall(const HostCall& call, CUresult error);
// Moves the bytes; the executor's part of a copy and a fill.
void RunCopy(const CopyCall& copy);
void RunFill(const FillCall& fill);
// The memory that it fills is there. D().mutex held.
bool FillIsValid(const FillCall& fill);

}  // namespace prorata::simgpu::driver
