#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "generated/cuda_abi.h"
#include "sim/core/machine.h"
#include "sim/cuda/context/context_storage.h"
#include "sim/cuda/memory/arena.h"
#include "sim/cuda/memory/heap.h"

// The state of the simulated driver in one process.
//
// Everything hangs off one Driver object that is never destroyed: NVIDIA's runtime calls from its
// own exit handlers, after static destructors have run. One mutex guards all of it. It is held for
// look-ups and for the machine's short calls, never while waiting for the device, never while
// calling a function of the program.
//
// Lock order: Stream::order, Driver::mutex, then whatever the machine locks. ContextStorage has its
// own lock and calls the program without it.
//
// Handles that programs hold are addresses of these objects; before one is followed it is looked up
// in the Driver's tables, so a stale or invented handle is an error and not a crash. Objects whose
// address may still be in use by another thread of the program are held by shared_ptr.

namespace prorata::simgpu::driver {

struct Capture;
struct GraphNode;
struct Graph;
struct GraphExec;
struct Advice;
struct GraphMemory;
struct Pool;
struct Module;
struct Function;
struct Context;
struct Green;

// What comes before something that was or will be submitted: of streams, up to which of their
// entries. Only a part of it need be known: what is missing is not relied upon.
using StreamClock = std::map<Handle, uint64_t>;

// A stream of the program, or a default stream of a context.
struct Stream {
  Context* ctx = nullptr;
  Green* green = nullptr;  // whose SMs it runs on: its context is the primary one then
  Handle handle = 0;       // of the machine
  StreamKind kind = StreamKind::kBlocking;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  bool is_default = false;           // legacy or per-thread: cannot be destroyed by the program
  std::shared_ptr<Capture> capture;  // while it takes part in one
  std::vector<GraphNode*> captured;  // what the next captured node of it depends on
  std::map<int, CUstreamAttrValue> attributes;
  StreamClock after;  // what its next entry comes after, in other streams
  // Held while work is submitted that must lie together. Before Driver::mutex.
  std::mutex order;
};
using StreamRef = std::shared_ptr<Stream>;

struct Event {
  Context* ctx = nullptr;
  Handle handle = 0;
  Handle share = 0;  // another process's event that this one has opened
  unsigned flags = 0;
  bool recorded = false;
  // What its last record comes after, and how often it was recorded. Empty for events that other
  // processes may record.
  StreamClock after;
  uint64_t records = 0;
  // Set when the last record was captured: the nodes that a wait in the same capture depends on.
  std::shared_ptr<Capture> capture;
  std::vector<GraphNode*> captured;
};
using EventRef = std::shared_ptr<Event>;

// Contexts are never freed: another thread may have a destroyed one on its stack and must get
// CUDA_ERROR_CONTEXT_IS_DESTROYED for it. The primary context of a device is one object for ever,
// alive or not, because cudart compares its handle.
struct Context {
  int device = 0;
  bool primary = false;
  Green* green =
      nullptr;  // this is the view of a green context, never found as a Context (green.h)
  std::atomic<bool> alive = false;
  unsigned flags = 0;
  unsigned api_version = 3020;
  uint64_t id = 0;
  int retain_count = 0;  // primary only
  Handle handle = 0;     // of the machine, while alive
  StreamRef legacy;
  std::map<uint64_t, StreamRef> per_thread;  // by Thread::id
  Heap heap;                                 // cuMemAlloc and its relatives
  std::map<int, size_t> limits;
  struct Block {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };
  std::map<int, Block> blocks;  // by limit; see code_memory.h
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  std::set<Context*> peers;                     // whose memory it may use: cuCtxEnablePeerAccess
  std::atomic<CUresult> sticky = CUDA_SUCCESS;  // an error that stays; see faults.h
};

// What a device address or a pinned host address belongs to.
struct Memory {
  enum class Kind { kDevice, kManaged, kHost, kRegistered, kPool, kMapped, kGlobal, kImported };
  Kind kind = Kind::kDevice;
  uint64_t base = 0;
  uint64_t bytes = 0;         // as asked for
  uint64_t mapped_bytes = 0;  // kHost: of the mapping
  Context* ctx = nullptr;
  int device = 0;
  uint64_t buffer_id = 0;
  unsigned flags = 0;    // of cuMemHostAlloc, cuMemHostRegister, cuMemAllocManaged
  Pool* pool = nullptr;  // kPool
  ShareName name;        // when other processes may open it
  bool sync_memops = false;
  bool readable = true;            // kMapped: after cuMemSetAccess
  std::shared_ptr<Advice> advice;  // kManaged: when there was any

  bool on_device() const { return kind != Kind::kHost && kind != Kind::kRegistered; }
};

struct Device {
  int index = 0;
  CUuuid uuid{};
  int pci_domain = 0;
  int pci_bus = 0;
  int pci_device = 0;
  Context primary;
  unsigned primary_flags = 0;
  std::unique_ptr<Arena> arena;
  Pool* default_pool = nullptr;
  Pool* current_pool = nullptr;
};

struct Thread {
  uint64_t id = 0;
  std::vector<Context*> stack;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  int inside_callback = 0;  // a host function or host kernel of the program is running on it
};

struct Driver {
  Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  std::mutex mutex;
  std::unique_ptr<Machine> machine;
  Handle process = 0;                            // 0 until the first context
  std::vector<std::unique_ptr<Device>> devices;  // visible ones, in the order of their ordinals
  std::vector<int> machine_index;                // ordinal -> device of the machine
  bool launches_block = false;  // CUDA_LAUNCH_BLOCKING=1: they return when their kernels have ended
  ContextStorage storage;

  std::set<Context*> contexts;  // all there ever were, primary ones included
  std::map<const void*, std::unique_ptr<Green>> greens;  // the same
  std::unordered_map<const void*, StreamRef> streams;
  std::unordered_map<const void*, EventRef> events;
  std::map<uint64_t, Memory> memory;  // by base
  std::unordered_map<const void*, std::shared_ptr<Module>> modules;
  std::unordered_map<const void*, std::shared_ptr<Module>> libraries;
  std::unordered_map<const void*, std::shared_ptr<Function>> functions;
  std::unordered_map<const void*, std::shared_ptr<Graph>> graphs;
  std::unordered_map<const void*, Graph*> nodes;  // node -> its graph
  std::unordered_map<const void*, std::shared_ptr<GraphExec>> execs;
  GraphMemory& graph_memory;
  std::set<std::shared_ptr<Capture>> captures;  // open ones
  std::set<Pool*> pools;
  uint64_t next_id = 1;

  Device& device(int ordinal) { return *devices[ordinal]; }
  const DeviceConfig& config(int ordinal) const { return machine->device(machine_index[ordinal]); }
};

// The one Driver. Valid in every state; `machine` is set once cuInit succeeded.
Driver& D();

// The calling thread's state. Made on demand, also while the thread or process is exiting.
Thread& Self();

// CUDA_ERROR_NOT_INITIALIZED before cuInit and in a forked child; CUDA_ERROR_NOT_PERMITTED inside a
// callback. The first thing that every call checks.
CUresult EnterCall();
// The same, and a live current context; where a green one is current, its primary context.
CUresult EnterContext(Context** ctx);
// EnterCall, and a device ordinal that exists.
CUresult EnterDevice(CUdevice device);
// True after cuInit in this process and not in its forked child.
bool Initialized();

CUresult FromCode(Code code);

// Tests have told the machine to break this rule (sim/core/model/rules.h).
inline bool Broken(Rule rule) { return D().machine && D().machine->config().Broken(rule); }

// Look-ups; all need D().mutex.
//
// `stream` 0 is the legacy default stream, or with `per_thread` that of the calling thread; 1 and 2
// name them outright. Null when there is no such stream.
CUresult FindStream(CUstream stream, bool per_thread, Context* current, StreamRef* out);
CUresult FindEvent(CUevent event, EventRef* out);
// The record that contains `address`, or null.
Memory* FindMemory(uint64_t address);
// Whether every byte of the range is in known device memory that can be touched.
bool DeviceRangeIsValid(uint64_t address, uint64_t bytes);
bool ContextIsKnown(Context* ctx);

}  // namespace prorata::simgpu::driver
