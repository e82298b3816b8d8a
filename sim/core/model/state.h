#pragma once

// The whole state of a machine: plain data, no pointers, zero is empty, so that a sparse zeroed
// file is an empty machine and every process may map it anywhere.
//
// In memory (one mapping of the file `machine`):
//
//   State (fixed size)
//   per device d: uint32 owner[slab_count]      at State::owner_offset[d]
//                 uint64 used[slab_count / 64]  at State::used_offset[d]
//
// Tables are used from index 1; index 0 means none. Everything here but the header and the futex
// words is written through a Transaction only.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sim/core/config.h"
#include "sim/core/types.h"

namespace prorata::simgpu {

using Index = uint32_t;

inline constexpr uint64_t kStateMagic = 0x75706773'7472706dULL;
inline constexpr uint32_t kStateLayout = 8;  // raise with every change of the structs below
inline constexpr uint32_t kMaxProcesses = 256;
inline constexpr uint32_t kMaxContexts = 1024;
inline constexpr uint32_t kMaxStreams = 16384;
inline constexpr uint32_t kMaxEvents = 262144;
inline constexpr uint32_t kMaxItems = 131072;
inline constexpr uint32_t kMaxBlocks = 16384;
inline constexpr uint32_t kMaxShares = 65536;
inline constexpr uint32_t kMaxExports = 16384;
inline constexpr uint32_t kLogBytes = 4u << 20;
inline constexpr uint32_t kConfigTextBytes = 32768;
// A slab whose owner has this bit is free but not yet wiped; the other bits are the process that
// is wiping it.
inline constexpr uint32_t kScrubbing = 0x80000000u;
// A slab whose owner has this bit belongs to the block in the other bits.
inline constexpr uint32_t kOfBlock = 0x40000000u;

struct List {
  Index head = 0;
  Index tail = 0;
};

struct Link {
  Index prev = 0;
  Index next = 0;
};

enum class Life : uint8_t {
  kFree = 0,
  kLive,
  kEnding,  // streams: destroyed, still draining; contexts: being taken apart
};

// `finish_ns` of a kernel that has run its time and waits for those that it meets.
inline constexpr int64_t kNotYetNs = int64_t{1} << 61;

// What every table's record begins with.
struct Slot {
  uint32_t generation = 0;
  Index next_free = 0;
  Life life = Life::kFree;
};

struct ProcessRecord {
  Slot slot;
  int32_t pid = 0;  // in its own pid namespace; with the next two: is this me?
  uint64_t pid_namespace = 0;
  uint64_t image = 0;
  int64_t begun_ns = 0;  // when it came to the machine
  List contexts;
  // What the executor is to run, oldest first: heads of streams that it holds up (kAction), and
  // kernels that their streams have left behind (StreamRecord::left).
  List actions;
  Index taken = 0;               // the head of `actions`, while the executor is at it
  uint32_t pending_actions = 0;  // entries with a token, submitted and not finished
  // Kernels left behind are numbered 1, 2, ...: how many there were, how many of them have run, and
  // the lowest number that a waiter wants to hear of (0: none).
  uint64_t left_tickets = 0;
  uint64_t ran_tickets = 0;
  uint64_t wanted_ticket = 0;
  uint32_t scrubbing = 0;  // slabs it is wiping
  List shares;             // ShareRecord::in_process
  List exports;            // of kind kPool
  // Streams, also of other processes, that wait until its kernels up to some ticket have run.
  List ticket_waiters;
  uint32_t block_slabs[kMaxDevices] = {};  // of blocks it pays for
  int64_t busy_ns[kMaxDevices] = {};
};

struct ContextRecord {
  Slot slot;
  Index process = 0;
  uint32_t device = 0;
  Link in_process;
  Link in_ring;
  bool ring = false;
  List streams;
  List events;
  Index legacy_stream = 0;
  uint64_t next_ticket = 1;  // order of submission over all streams of the context
  int64_t engine_ns = 0;     // engine time it was served, with a kernel running
  List ready;                // streams whose kernel waits for SMs, best priority first
  List running;              // streams whose kernel runs, first to finish first
  uint32_t running_ppm = 0;
  uint32_t slabs = 0;
  uint64_t visible_ticket = 0;  // the highest of its streams that are gone
};

enum class Place : uint8_t {
  kNone = 0,    // to be looked at (dirty), or empty
  kDelayed,     // its head may not start yet
  kBlocked,     // its head waits for another stream
  kHeldUp,      // its head waits for functions of another process's kernels
  kReady,       // kernel waiting for SMs or for the context's turn
  kRunning,     // kernel in progress
  kCopying,     // in the queue of a copy engine
  kAction,      // held up until the executor gets to its action
  kActionTaken  // held up, and the executor has it
};

struct StreamRecord {
  Slot slot;
  StreamKind kind = StreamKind::kBlocking;
  Place place = Place::kNone;
  bool dirty = false;
  uint8_t copy_device = 0;  // whose copy engine
  uint8_t copy_engine = 0;
  int32_t priority = 0;
  Index context = 0;
  SmSet sms;        // its kernels run on these only
  Index group = 0;  // the part's default stream (of one, itself); 0: the context's own
  uint32_t group_generation = 0;
  Link in_context;
  List items;  // singly linked; `tail` is the last
  List left;   // kernels done on the device whose functions have not run; singly linked, too
  uint32_t queued = 0;
  uint32_t left_count = 0;
  uint32_t tokens = 0;  // queued entries with one
  uint64_t submitted = 0;
  uint64_t completed = 0;
  // The host may see the last completed entry when so many kernels of the process have run.
  uint64_t visible_ticket = 0;
  Link at_place;
  int64_t finish_ns = 0;   // kRunning: in engine time of its context
  int64_t started_ns = 0;  // of the head: when an engine began it
  List waiters;            // streams blocked on this one
  Link as_waiter;
  Index blocked_on = 0;  // a stream; kHeldUp: a process
  Link in_dirty;
};

struct ItemRecord {
  Index next = 0;  // also the free list
  WorkKind kind = WorkKind::kKernel;
  uint8_t copy_device = 0;  // copies: the engine
  uint8_t copy_engine = 0;
  uint32_t sm_ppm = 0;
  Index event = 0;
  uint32_t event_generation = 0;
  Index after_stream = 0;  // of a wait: this stream must have completed after_sequence
  uint32_t after_generation = 0;
  uint64_t after_sequence = 0;
  // The record was another process's: its kernels up to this ticket must have run. The ticket is 0
  // until the record is complete.
  Index after_process = 0;
  uint32_t after_process_generation = 0;
  uint64_t after_ticket = 0;
  uint64_t rendezvous = 0;  // kKernel: ends together with rendezvous_size - 1 others
  uint32_t rendezvous_size = 0;
  uint64_t record = 0;  // kEventRecord: which record of the event this is
  int64_t duration_ns = 0;
  int64_t not_before_ns = 0;
  uint64_t ticket = 0;
  uint64_t token = 0;
  // Of those in ProcessRecord::actions.
  Link in_actions;
  Index stream = 0;
  uint64_t sequence = 0;
  uint64_t left_ticket = 0;  // 0: its stream waits for it
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
};

struct EventRecord {
  Slot slot;
  Index context = 0;
  Link in_context;
  uint64_t records = 0;  // how often it was recorded
  bool complete = false;
  int64_t time_ns = 0;
  uint64_t visible_ticket = 0;  // when complete; as in StreamRecord, of `recorder`
  Index recorder = 0;           // the process of the latest record
  uint32_t recorder_generation = 0;
  uint64_t cookie = 0;  // not 0: has a handle for other processes
  List shares;          // contexts of other processes that have opened it
  Index stream = 0;     // of the latest record
  uint32_t stream_generation = 0;
  uint64_t sequence = 0;
};

// Device memory that several processes may hold: what its maker allocated, once it has a name for
// others. It lives as long as somebody holds it, and is on the account of whoever has held it
// longest: of its maker first.
struct BlockRecord {
  Slot slot;
  uint32_t device = 0;
  uint32_t slabs = 0;
  uint32_t descriptors = 0;  // exports that hold it
  List shares;               // who holds it, oldest first
  List exports;
};

// That a process holds a block, or has opened an event.
struct ShareRecord {
  Slot slot;
  bool of_event = false;
  bool maker = false;  // the block was made of its slabs
  Index target = 0;    // block or event
  Index process = 0;
  Index context = 0;  // it goes with this context; 0: with the process
  Link in_target;
  Link in_process;
};

enum class ExportKind : uint8_t {
  kAddress,     // a piece of a block; goes with the maker's share, or before
  kDescriptor,  // a file descriptor, which itself holds the block
  kPool,        // what pieces of blocks may belong to
};

// A name by which other processes come to hold a block. The cookie makes it one that only those
// know who were notified.
struct ExportRecord {
  Slot slot;
  ExportKind kind = ExportKind::kAddress;
  Index block = 0;
  Index process = 0;  // that made it
  uint32_t process_generation = 0;
  uint32_t device = 0;
  uint64_t cookie = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t pool = 0;  // kAddress: a handle of the pool's export, or 0
  Link in_list;       // of its block; kPool: of its process
  Link in_descriptors;
};

enum class EnginePhase : uint8_t { kIdle = 0, kSwitching, kRunning };

struct CopyEngine {
  List queue;  // the head is in progress
  int64_t finish_ns = 0;
};

struct UsageSample {
  int64_t time_ns = 0;
  int64_t busy_ns = 0;
};

inline constexpr uint32_t kUsageSamples = 32;

// Whose context the device had at a moment, and how much of the time before it kernels ran there,
// whose ever they were.
struct ProcessSampleRecord {
  int64_t time_ns = 0;
  Index process = 0;  // 0: none ran since the sample before
  uint32_t generation = 0;
  uint32_t percent = 0;
};

inline constexpr uint32_t kProcessSamples = 16;

struct DeviceRecord {
  EnginePhase phase = EnginePhase::kIdle;
  Index current = 0;       // the context on the engine, and the head of the ring
  Index last_context = 0;  // whose state the engine holds
  int64_t phase_end_ns = 0;
  int64_t slice_end_ns = 0;
  List ring;  // contexts with kernels to run
  uint32_t ring_size = 0;
  uint32_t slab_count = 0;
  uint32_t used_slabs = 0;
  uint32_t scrubbing_slabs = 0;
  uint32_t next_slab = 0;  // where the next search begins
  uint64_t context_bytes = 0;
  uint64_t peak_bytes = 0;  // the most that was ever in use
  int64_t busy_ns = 0;
  int64_t switching_ns = 0;
  bool lost = false;  // off the bus: nothing runs on it any more
  int64_t stalled_until_ns = 0;
  CopyEngine copy[3];    // from the host, to the host, to peers over NVLink
  uint32_t samples = 0;  // ever taken
  UsageSample sample[kUsageSamples];
  uint32_t process_samples = 0;  // ever taken
  ProcessSampleRecord process_sample[kProcessSamples];
  int64_t sampled_busy_ns = 0;  // `busy_ns` at the last of them
};

// Free entries of a table: those given back, then those never used.
struct FreeList {
  Index head = 0;
  Index highest = 0;
};

struct State {
  // Header: written when the file is made, before anybody else can see it.
  uint64_t magic = 0;
  uint32_t layout = 0;
  uint32_t device_count = 0;
  uint64_t size_bytes = 0;
  int64_t realtime_offset_us = 0;  // CLOCK_REALTIME less CLOCK_MONOTONIC: NVML's stamps are of that
  char config_text[kConfigTextBytes] = {};
  uint32_t owner_offset[kMaxDevices] = {};
  uint32_t used_offset[kMaxDevices] = {};
  std::atomic<uint32_t> retired = 0;
  // Futex words, bumped after a change; they carry no state.
  std::atomic<uint32_t> waiter_word[kMaxProcesses + 1] = {};
  std::atomic<uint32_t> executor_word[kMaxProcesses + 1] = {};
  std::atomic<int64_t> last_reap_ns = 0;  // real clock
  // How many processes each fault of the configuration has met; they carry no other state.
  std::atomic<uint32_t> fault_processes[kMaxFaults] = {};

  // The undo log; see transaction.h.
  uint64_t log_used = 0;
  alignas(8) unsigned char log[kLogBytes] = {};

  // The model.
  int64_t now_ns = 0;
  int64_t made_ns = 0;       // when it was first advanced; 0 before
  uint32_t faults_done = 0;  // a bit for each timed one
  FreeList free_processes;
  FreeList free_contexts;
  FreeList free_streams;
  FreeList free_events;
  FreeList free_items;
  FreeList free_blocks;
  FreeList free_shares;
  FreeList free_exports;
  uint32_t items_in_use = 0;
  List dirty;        // streams whose head may be able to move, oldest first
  List delayed;      // streams whose head may not start yet, soonest first
  List descriptors;  // exports whose descriptors somebody has to look after
  DeviceRecord devices[kMaxDevices];
  ProcessRecord processes[kMaxProcesses + 1];
  ContextRecord contexts[kMaxContexts + 1];
  StreamRecord streams[kMaxStreams + 1];
  EventRecord events[kMaxEvents + 1];
  ItemRecord items[kMaxItems + 1];
  BlockRecord blocks[kMaxBlocks + 1];
  ShareRecord shares[kMaxShares + 1];
  ExportRecord exports[kMaxExports + 1];
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(State) < (1u << 31), "the undo log has 32-bit offsets");

}  // namespace prorata::simgpu
