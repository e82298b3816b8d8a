#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/core/config.h"
#include "sim/core/model/state.h"
#include "sim/core/model/transaction.h"
#include "sim/core/types.h"

namespace prorata::simgpu {

// Wipes a piece of a device's memory.
using Wipe = std::function<void(int device, const Extent& extent)>;

// What a wait or a query is about, fixed when it begins.
struct Condition {
  enum class Kind : uint8_t {
    kSequence,  // a stream has completed up to `limit`
    kRoom,      // the same, and it keeps no entry up to there
    kContext,   // a context has completed all tickets below `limit`
  } kind = Kind::kSequence;
  Index index = 0;  // stream, or context
  uint32_t generation = 0;
  uint64_t limit = 0;
  Index process = 0;  // whose it is
  uint32_t process_generation = 0;
  // Once the device has got there: the functions up to here must have run before the host may know.
  // Fixed at the first look, so that what is submitted later does not put it off.
  bool reached = false;
  uint64_t visible_ticket = 0;
};

// The discrete-event model over a State, and nothing else: no clock, lock, file or thread. The
// caller holds the machine's lock.
//
// How time works. `state.now_ns` is the instant the model stands at. At one instant, first all
// dirty streams are pumped (each moves its head where it belongs: to the engine, a copy engine,
// the executor, or past it), then each device's engine chooses a context. Only then time moves, to
// the next event: a kernel or copy finishes, a slice or a switch ends, a delayed head may start.
// Ties: delayed heads, then devices by index (kernels, copies, slice end). So the same calls at
// the same times give the same history.
//
// How the engine shares. One context is on the engine; contexts with kernels form a ring. A
// context's turn ends when its slice is over and another is in the ring, or at once when it has
// nothing to run; putting on a context other than the last costs switch_cost. Alone, a context's
// slices follow each other without gaps, so a newcomer waits for the running one to end. Within a
// context kernels start in order of priority, then arrival, when the SMs they ask for are free
// (the first in line that does not fit holds up the rest, as the hardware's queue does), and then
// progress at full speed whenever the context is on the engine. Streams that are confined to a part
// of the SMs are in line only with those whose SMs overlap theirs.
//
// How actions run. A copy, fill or host function holds its stream up until its action is complete.
// A kernel does not: at the end of its engine time its stream goes on, as a device would, and only
// the host must not notice yet. So:
//   1. Actions wait in one list per process in the order of model time, and the executor completes
//      each before it gets the next: each finds what those before it have written.
//   2. What completes on the device is visible to the host when all kernels of the process that
//      were left behind before it have run. One count for the whole process, since streams that
//      wait for each other's events depend on each other's kernels.
//
// Every public mutator leaves the state consistent but uncommitted, except those said to commit
// in steps.
class Model {
 public:
  Model(State* state, const MachineConfig& config)
      : tx_(state), config_(std::make_unique<const MachineConfig>(config)) {}

  const State& state() const { return tx_.state(); }
  Transaction& tx() { return tx_; }

  // Events up to and including `now_ns`; commits after each. Time never goes back.
  void AdvanceTo(int64_t now_ns);
  // Brings the present instant to rest after a change; commits in steps.
  void Settle();
  int64_t NextEventNs() const;  // kForever when none; valid after Settle
  // Share of the last second (or of the machine's life) in which a kernel was running.
  uint32_t UtilizationPpm(int device) const;

  // --- Objects (model_objects.cc) --------------------------------------------------------------
  Answer<Index> AddProcess(Index slot, int32_t pid, uint64_t pid_namespace, uint64_t image);
  // Takes a process apart; commits in steps, and may be begun again after a kill.
  void EndProcess(Index process, const Wipe& wipe);
  Answer<Index> AddContext(Index process, int device);
  void BeginEndContext(Index context);               // off the engine, handle invalid
  void EndContext(Index context, const Wipe& wipe);  // the rest; commits in steps
  Answer<Index> AddStream(Index context, StreamKind kind, int priority, const StreamPart& part);
  void EndStream(Index stream);  // when drained
  Answer<Index> AddEvent(Index context);
  void RemoveEvent(Index event);  // those who have opened it keep it

  // --- Sharing between processes (model_shared.cc) -----------------------------------------------
  // The slabs, which must be the context's, become a block that it holds. kInvalidValue leaves a
  // torn transaction that the caller must roll back.
  Answer<Index> AddBlock(Index context, std::span<const Extent> extents);
  // `context` 0: until the process lets go.
  Answer<Index> AddShare(Index block, Index process, Index context);
  // Gives what is now the share's process's to wipe: the whole block, if nobody else holds it.
  std::vector<Extent> DropShare(Index share);
  Answer<Index> AddExport(ExportKind kind, Index share, const Extent& piece, uint64_t pool,
                          uint64_t cookie);
  Answer<Index> AddPoolExport(Index process, int device, uint64_t cookie);
  void DropExport(Index index);
  // A descriptor that nobody has any more; commits in steps.
  void DropDescriptor(Index index, const Wipe& wipe);
  Answer<Index> AddEventShare(Index event, Index context);
  void DropEventShare(Index share);
  // The process on whose account the block is; 0 when only descriptors hold it.
  Index PayerOf(Index block) const;

  // --- Memory (model_memory.cc) ----------------------------------------------------------------
  MemoryInfo Memory(int device) const;
  // kNotReady: the memory is there, but somebody is still wiping it.
  Answer<std::vector<Extent>> AllocSlabs(Index context, uint64_t bytes);
  // The context's slabs become `process`'s to wipe; kInvalidValue leaves a torn transaction that
  // the caller must roll back.
  Code BeginFree(Index context, Index process, std::span<const Extent> extents);
  // Another context of the process and device owns them from now on. kInvalidValue is as above.
  Code MoveSlabs(Index from, Index to, std::span<const Extent> extents);
  void EndFree(int device, Index process, std::span<const Extent> extents);
  // In the order of their offsets, as they were given out.
  std::vector<Extent> OwnedSlabs(int device, uint32_t owner) const;
  // Wipes and frees all of an owner (a context, or kScrubbing | process); commits in steps.
  void ReleaseOwner(int device, uint32_t owner, const Wipe& wipe);

  // --- Work (model_streams.cc) -----------------------------------------------------------------
  Answer<uint64_t> Submit(Index stream, std::span<const Work> work);
  Code Check(Condition* condition) const;
  // No event ends the condition's wait before this; now when it cannot be known; kForever when
  // only the executor can end it.
  int64_t EarliestNs(const Condition& condition) const;
  // The condition's waiter, which is to sleep, hears of the kernel that it waits for.
  void WantVisible(const Condition& condition);

  // --- Actions (model_actions.cc) --------------------------------------------------------------
  bool TakeAction(Index process, Action* action);
  Code CompleteAction(const Action& action);
  Code DeferAction(const Action& action);
  int64_t EarliestActionNs(Index process) const;  // model_waits.cc

  // --- Faults (model_faults.cc) ----------------------------------------------------------------
  // All that was submitted to the context is gone, and counts as done. Commits in steps.
  void DropWork(Index context);
  // Nothing runs on the device again. Commits in steps.
  void LoseDevice(int device);
  void StallDevice(int device, int64_t for_ns);
  bool Lost(int device) const { return state().devices[device].lost; }

  // --- Handles ---------------------------------------------------------------------------------
  enum class Kind : uint8_t { kProcess = 1, kContext, kStream, kEvent, kBlock, kShare, kExport };
  static Handle MakeHandle(Kind kind, Index index, uint32_t generation) {
    return uint64_t{generation} << 32 | uint64_t(kind) << 28 | index;
  }
  // The index of a live record (or also an ending one), 0 when the handle is stale or wrong.
  Index Find(Kind kind, Handle handle, bool also_ending = false) const;
  Handle HandleOf(Kind kind, Index index) const;

  std::string CheckInvariants() const;  // model_check.cc

  // Processes whose executor or waiters should look again; the caller clears it.
  std::vector<Index>& wake_executors() { return wake_executors_; }
  std::vector<Index>& wake_waiters() { return wake_waiters_; }

  const uint32_t* owners(int device) const;
  const uint64_t* used_bits(int device) const;

 private:
  // model_engine.cc
  void PassTime(int64_t to_ns);
  void MoveTime(int64_t to_ns);
  void ProcessDue();
  bool ProcessKernels(int device);
  bool Met(Index stream);
  bool ProcessCopies(int device);
  void Schedule(int device);
  void PutOnEngine(int device);
  void Admit(int device);
  void StartKernel(Index stream);
  bool Fits(const ContextRecord& context, Index stream) const;
  uint32_t PartPpm(int device, const SmSet& sms) const;
  void JoinRing(Index context);
  void LeaveRing(Index context);
  void TakeSample(int device);
  void SampleProcesses(int device, int64_t to_ns);
  int64_t NextDeviceEventNs(int device) const;
  void StartCopy(int device, int engine);

  // model_streams.cc
  void MarkDirty(Index stream);
  void UnmarkDirty(Index stream);
  void Pump(Index stream);
  void Start(Index stream, const ItemRecord& item);
  void Complete(Index stream);
  void Passed(Index stream);
  void CompleteEvent(const ItemRecord& item);
  void Block(Index stream, Index on);
  void WakeWaiters(Index stream);
  void Unplace(Index stream);
  void Delay(Index stream, int64_t not_before_ns);
  void EnqueueKernel(Index stream);
  Index Blocker(Index stream, const ItemRecord& item) const;
  bool HeldUp(Index item);
  void WakeTicketWaiters(Index process);
  void Unblock(Index waiter, Index process);
  bool MayRecord(Index event, Index context) const;
  bool StreamPassed(Index stream, uint32_t generation, uint64_t sequence) const;
  Index UnlinkHead(Index stream);
  void ReleaseItem(Index process, Index item);
  void LinkItem(const StreamRecord& stream, Index item);
  void FillItem(ItemRecord* item, Index stream, uint64_t sequence, const Work& work);
  bool ValidWork(Index stream, const Work& work) const;
  int64_t RemainingNs(Index stream) const;  // of its head
  bool WaitsForExecutor(Index stream) const;
  bool DeviceIsThere(const Condition& condition) const;
  uint64_t VisibleTicket(const Condition& condition) const;

  // model_actions.cc
  void FinishEngine(Index stream);  // its engine's part is over: action or complete
  void LeaveBehind(Index stream);
  void PopLeft(Index stream);
  void RemoveAction(Index process, Index item);
  Index TakenItem(const Action& action, Index* stream) const;

  // model_faults.cc
  void DropQueue(Index stream);
  void DropLost();
  int64_t NextFaultNs() const;
  void FaultsDue();

  // model_objects.cc
  Index Take(const FreeList& list, Index limit, Kind kind);
  void GiveBack(const FreeList& list, Kind kind, Index index);
  const Slot& SlotOf(Kind kind, Index index) const;
  void DismantleStream(Index stream);
  void FreeStream(Index stream);
  void WakeEverybody();
  void EndContextShares(Index context);
  void NotePeaks();
  void FreeSlabRun(int device, const Extent& extent);
  void Charge(Index process, Index block, bool pays);
  std::vector<Extent> FreeBlock(Index block, Index wiper);

  const DeviceConfig& device_config(int device) const { return config_->devices[device]; }
  int64_t now() const { return state().now_ns; }

  Transaction tx_;
  std::unique_ptr<const MachineConfig> config_;
  std::vector<Index> wake_executors_;
  std::vector<Index> wake_waiters_;
};

}  // namespace prorata::simgpu
