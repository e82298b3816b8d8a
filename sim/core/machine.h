#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "sim/core/config.h"
#include "sim/core/types.h"

namespace prorata::simgpu {

class Attachment;  // the mapped or local state with its lock
struct Operation;  // one call under the lock
struct Target;     // what a wait is about

// The simulated GPUs of one machine.
//
// The problem: several programs, each with its own copy of the simulated driver, must see one GPU,
// with no daemon that could itself be late, leak or die. So the machine is a discrete-event model
// in shared memory that moves only when somebody looks: every call first brings the model up to
// the clock's now, then does its own change, all under one lock. A change is a transaction with an
// undo log in the shared memory; whoever finds the lock's last owner dead rolls it back.
//
// On a VirtualClock (MakeLocal) the same code runs inside one process, with state on the heap; a
// wait then moves the clock to the next event instead of sleeping.
//
// All calls are thread-safe (with a VirtualClock: one thread). None may be made by a forked child
// of the process that attached: compare pid() with getpid() and attach anew, without destroying
// the inherited object. Every call costs a few microseconds at most, except waits.
class Machine {
 public:
  // Joins the machine in `state_folder`, and makes it if there is none or if nobody uses the old
  // one and its configuration differs. Errors: the folder cannot be used; live processes are
  // attached to a machine with another configuration. An attachment alone is an observer: it sees
  // everything and owns nothing.
  static Result<std::unique_ptr<Machine>> Attach(const MachineConfig& config,
                                                 const std::string& state_folder);
  // A machine in this process. `clock` must outlive it.
  static std::unique_ptr<Machine> MakeLocal(const MachineConfig& config, VirtualClock* clock);

  ~Machine();  // unregisters what this object registered
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const MachineConfig& config() const { return config_; }
  int device_count() const { return static_cast<int>(config_.devices.size()); }
  const DeviceConfig& device(int index) const { return config_.devices[index]; }
  // The process that attached, for the fork check.
  int pid() const { return pid_; }
  // True when a later attacher replaced this machine (only possible for observers): attach anew.
  bool retired() const;
  int64_t NowNs() const;  // the model's clock

  // --- Processes -------------------------------------------------------------------------------
  // Makes this process an owner of contexts. On a shared machine once per Machine (a second call
  // gives the same handle), and death frees all. On a local one every call makes another process
  // with the given pid.
  Answer<Handle> RegisterProcess(int local_pid = 0);
  // Frees everything the process owns.
  Code UnregisterProcess(Handle process);

  // --- Memory ----------------------------------------------------------------------------------
  // A context costs the device's context_bytes. kOutOfMemory, kOutOfResources.
  Answer<Handle> CreateContext(Handle process, int device);
  // Queued work is dropped, running kernels stop, streams and events are gone, slabs are freed:
  // unmap them first.
  Code DestroyContext(Handle context);

  // Slabs covering `bytes` (rounded up), in as few extents as can be had. Slabs read as zeros.
  Answer<std::vector<Extent>> AllocSlabs(Handle context, uint64_t bytes);
  // Exactly extents (or slab-aligned parts of them) that the context owns; else kInvalidValue and
  // nothing changed. Unmap them before: their pages are punched out of the file.
  Code FreeSlabs(Handle context, std::span<const Extent> extents);
  // Another context of the same process and device owns them from now on; else kInvalidValue.
  Code MoveSlabs(Handle from, Handle to, std::span<const Extent> extents);
  // All slabs the context owns.
  Code FreeAllSlabs(Handle context);
  Answer<MemoryInfo> MemInfo(int device);

  // --- Memory and events of several processes (machine_shared.cc) ------------------------------
  // The extents, all of one AllocSlabs, become memory that others may hold, too. The context holds
  // it until it drops the share (which takes FreeSlabs's place) or goes. It is on the account of
  // the process that has held it longest, and lives until nobody holds it.
  Answer<SharedMemory> ShareSlabs(Handle context, std::span<const Extent> extents);
  // Unmap it before.
  Code DropShare(Handle share);
  // It goes with that context of the same process from now on.
  Code PassShare(Handle share, Handle context);
  // A name for a piece of it, good until it is withdrawn or the maker of the memory drops it; only
  // the maker's share can be named, else kInvalidValue. With a pool: a name that needs the pool's,
  // too.
  Answer<ShareName> ExportAddress(Handle share, uint64_t offset_bytes, uint64_t length_bytes,
                                  const ShareName& pool = {});
  Code WithdrawExport(const ShareName& name);
  // Holds the memory until the share is dropped, or the context (0: the process) goes.
  // kInvalidValue when the name is no longer good, kOwn when this process made it.
  Answer<SharedMemory> Import(const ShareName& name, Handle process, Handle context,
                              const ShareName& pool = {});

  // A file descriptor, the caller's to close, that names the memory and itself holds it until its
  // last duplicate is closed. Only on a shared machine.
  Answer<int> ExportDescriptor(Handle share);
  // kInvalidValue when it is none of those. The process itself may, too.
  Answer<SharedMemory> ImportDescriptor(int fd, Handle process);
  // A pool of memory: a name for ExportAddress, and a descriptor that says it to others.
  struct PoolExport {
    ShareName name;
    int fd = -1;
    int device = 0;
  };
  Answer<PoolExport> ExportPool(Handle process, int device);
  Answer<PoolExport> ImportPool(int fd, Handle process);  // kOwn

  // An event by the same means. Whoever opened it may record it in the context's streams. It lives
  // until its maker has destroyed it and all have closed it; its handle stays the same.
  Answer<ShareName> ExportEvent(Handle event);
  Answer<Handle> OpenEvent(const ShareName& name, Handle context);
  Code CloseEvent(Handle event, Handle share);

  // The file (tmpfs, sparse) whose offsets the extents are; owned by the machine. -1 when local.
  int memory_fd(int device) const;

  // --- Streams and events ----------------------------------------------------------------------
  // Lower `priority` values go first among kernels waiting for SMs, as in CUDA.
  // kInvalidValue for SMs that the device has not, and for a part's default stream of another
  // context or of no part.
  Answer<Handle> CreateStream(Handle context, StreamKind kind, int priority = 0,
                              const StreamPart& part = {});
  // Returns at once; work already submitted still runs.
  Code DestroyStream(Handle stream);
  Answer<Handle> CreateEvent(Handle context);
  Code DestroyEvent(Handle event);

  // Appends all of `work` or none. Gives the sequence number of the last entry: 1, 2, ... per
  // stream. kFull when the queue has not that much room, kOutOfResources when the machine has no
  // entries left; kInvalidValue for more than kMaxBatch entries or bad ones.
  Answer<uint64_t> Submit(Handle stream, std::span<const Work> work);
  Answer<uint64_t> Submit(Handle stream, const Work& work) { return Submit(stream, {&work, 1}); }
  static constexpr size_t kMaxBatch = 256;
  static constexpr uint32_t kQueueDepth = 4096;

  // What follows is about what the host may know: work is finished when the device is past it and
  // the actions of all kernels that ended before it are complete (those of this process).
  //
  // kOk or kNotReady. A stream handle that is gone is kInvalidHandle; that of a destroyed stream
  // can still be asked about one entry until the stream has drained.
  Code QueryStream(Handle stream, uint64_t sequence);
  Code QueryStream(Handle stream);    // everything submitted
  Code QueryEvent(Handle event);      // kOk too when it was never recorded
  Code QueryContext(Handle context);  // everything submitted to all of its streams
  // Waits until `deadline_ns` (model clock): kOk, kTimedOut, kInvalidHandle; kStuck.
  Code WaitStream(Handle stream, uint64_t sequence, int64_t deadline_ns = kForever);
  Code WaitStream(Handle stream);  // everything submitted
  Code WaitEvent(Handle event, int64_t deadline_ns = kForever);
  Code WaitContext(Handle context, int64_t deadline_ns = kForever);
  // Until the stream's queue has room for `entries` more.
  Code WaitForRoom(Handle stream, uint32_t entries = 1, int64_t deadline_ns = kForever);

  // Model time between two completed records. kNotReady when one is not complete, kInvalidValue
  // when one was never recorded.
  Answer<int64_t> ElapsedNs(Handle start, Handle end);

  // --- The executor of this process ------------------------------------------------------------
  // The next action to run; kTimedOut, or kShutdown. Several threads may ask; none gets one while
  // another is neither complete nor deferred, so that they run one after the other, in the order in
  // which their engine times ended.
  Answer<Action> NextAction(Handle process, int64_t deadline_ns = kForever);
  // The entry is finished; what waits behind it goes on.
  Code CompleteAction(const Action& action);
  // Not yet: others go first, and the caller completes it when it can. Kernels cannot be deferred.
  Code DeferAction(const Action& action);
  // Ends all NextAction calls of this object, now and later, with kShutdown (false: undoes that).
  void WakeExecutor(bool shutdown);

  // --- Faults ----------------------------------------------------------------------------------
  // What was submitted to the context is gone; waits for it end. For a context in error.
  Code DropWork(Handle context);
  // The device is off the bus until the machine is made anew: its work is gone, and what would
  // take memory or engines of it answers kDeviceLost.
  Code LoseDevice(int device);
  bool Lost(int device);
  // Nothing makes progress on the device for so long, in model time.
  Code StallDevice(int device, int64_t for_ns);
  // Which of the processes that fault number `fault` of the configuration met this is: 1, 2, ...
  uint32_t MeetFault(size_t fault);

  // --- Looking ---------------------------------------------------------------------------------
  // Reaps the dead first, so a killed process is never seen.
  Answer<DeviceUsage> Usage(int device);
  // Time in which kernels of this context ran.
  Answer<int64_t> ContextBusyNs(Handle context);
  // Finds dead processes and frees what they had. Called by the machine itself when it matters.
  void Reap();
  // When the model will next change by itself; kForever when nothing is going on. For whoever
  // drives a virtual clock.
  int64_t NextEventNs();

  // Empty, or the first broken invariant in words. For tests.
  std::string CheckInvariants();

 private:
  friend struct Operation;
  Machine(MachineConfig config, std::unique_ptr<Attachment> attachment,
          VirtualClock* virtual_clock);

  Code Query(const Target& target);
  Code Wait(const Target& target, int64_t deadline_ns);
  void FreeAll(uint32_t context);
  void DropSharesOf(uint32_t context);
  void FinishFree(int device, uint32_t process, std::span<const Extent> extents);

  MachineConfig config_;
  std::unique_ptr<Attachment> attachment_;
  VirtualClock* virtual_clock_;  // null: dilated real time
  DilatedClock dilated_clock_;
  int pid_;
  Handle process_ = 0;  // shared machines: what RegisterProcess made
  std::atomic<bool> executor_shutdown_{false};
  // Held shared while freed memory is wiped without the machine's lock, so that the process is not
  // taken apart (and its slabs given to others) meanwhile. Before the machine's lock.
  std::shared_mutex wipe_mutex_;
};

}  // namespace prorata::simgpu
