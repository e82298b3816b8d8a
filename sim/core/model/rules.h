#pragma once

// Rules of the driver that the simulated GPU can be made to break, so that the conformance
// suite can show that its tests notice (tests/conformance/mutations.toml names, for each, the tests
// that must fail). Never set outside tests: `broken_rules` of the machine's file.
//
// To add one: a line here, and at the one place that keeps the rule, `Broken(Rule::k...)` for what
// a driver without the rule would do.

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace prorata::simgpu {

// One list for each part of the suite.

//  X(constant, "name in the machine's file")
#define PRORATA_SIM_STREAM_RULES(X)                         \
  X(kLegacyWaitsForBlocking, "legacy-waits-for-blocking")   \
  X(kBlockingWaitsForLegacy, "blocking-waits-for-legacy")   \
  X(kNonBlockingIsFree, "non-blocking-is-free")             \
  X(kStreamInOrder, "stream-in-order")                      \
  X(kPerThreadIsPerThread, "per-thread-is-per-thread")      \
  X(kPerThreadIsBlocking, "per-thread-is-blocking")         \
  X(kStreamQueryTellsPending, "stream-query-tells-pending") \
  X(kStreamSynchronizeWaits, "stream-synchronize-waits")    \
  X(kContextSynchronizeWaits, "context-synchronize-waits")  \
  X(kDestroyDoesNotWait, "destroy-does-not-wait")           \
  X(kPriorityIsClamped, "priority-is-clamped")              \
  X(kPriorityGoesFirst, "priority-goes-first")              \
  X(kEventWaitHolds, "event-wait-holds")                    \
  X(kEventWaitIsOnTheDevice, "event-wait-is-on-the-device") \
  X(kWaitUsesItsRecord, "wait-uses-its-record")             \
  X(kNewRecordReplaces, "new-record-replaces")              \
  X(kOldRecordIsOver, "old-record-is-over")                 \
  X(kUnrecordedIsComplete, "unrecorded-is-complete")        \
  X(kEventQueryTellsPending, "event-query-tells-pending")   \
  X(kEventSynchronizeWaits, "event-synchronize-waits")      \
  X(kElapsedNeedsTiming, "elapsed-needs-timing")            \
  X(kElapsedNeedsCompletion, "elapsed-needs-completion")    \
  X(kRecordIsOfItsContext, "record-is-of-its-context")      \
  X(kHostFunctionWaits, "host-function-waits")              \
  X(kHostFunctionHolds, "host-function-holds")              \
  X(kHostFunctionIsApart, "host-function-is-apart")         \
  X(kCallbackMayNotCall, "callback-may-not-call")           \
  X(kWaitValueHolds, "wait-value-holds")                    \
  X(kWaitValueIsCyclic, "wait-value-is-cyclic")             \
  X(kWaitValueAnd, "wait-value-and")                        \
  X(kWaitValueNor, "wait-value-nor")                        \
  X(kWriteValueInOrder, "write-value-in-order")             \
  X(kBatchInOrder, "batch-in-order")

#define PRORATA_SIM_CAPTURE_RULES(X)                               \
  X(kCaptureDoesNotRun, "capture-does-not-run")                    \
  X(kGlobalForbidsAllThreads, "global-forbids-all-threads")        \
  X(kCaptureForbidsItsThread, "capture-forbids-its-thread")        \
  X(kRelaxedForbidsNothing, "relaxed-forbids-nothing")             \
  X(kThreadModeIsHeeded, "thread-mode-is-heeded")                  \
  X(kUnsafeInvalidates, "unsafe-invalidates")                      \
  X(kInvalidRefusesWork, "invalid-refuses-work")                   \
  X(kInvalidHasNoGraph, "invalid-has-no-graph")                    \
  X(kLegacyIsImplicit, "legacy-is-implicit")                       \
  X(kNonBlockingIsNotImplicit, "non-blocking-is-not-implicit")     \
  X(kAskingInvalidatesNothing, "asking-invalidates-nothing")       \
  X(kCapturingStreamHasNoState, "capturing-stream-has-no-state")   \
  X(kCapturingContextHasNoState, "capturing-context-has-no-state") \
  X(kBeginNeedsNoCapture, "begin-needs-no-capture")                \
  X(kOnlyItsThreadEnds, "only-its-thread-ends")                    \
  X(kOnlyTheOriginEnds, "only-the-origin-ends")                    \
  X(kCallbackIsNotCaptured, "callback-is-not-captured")            \
  X(kWaitJoinsTheCapture, "wait-joins-the-capture")                \
  X(kJoinedIsJoinedBack, "joined-is-joined-back")                  \
  X(kEndFreesJoinedStreams, "end-frees-joined-streams")            \
  X(kCapturesDoNotMerge, "captures-do-not-merge")                  \
  X(kCaptureIsIsolated, "capture-is-isolated")                     \
  X(kCapturedEventHasNoState, "captured-event-has-no-state")       \
  X(kCapturedEventInvalidates, "captured-event-invalidates")       \
  X(kExternalIsANode, "external-is-a-node")                        \
  X(kCaptureIdIsUnique, "capture-id-is-unique")                    \
  X(kSetReplacesDependencies, "set-replaces-dependencies")         \
  X(kToGraphDependsOnItsNodes, "to-graph-depends-on-its-nodes")

#define PRORATA_SIM_MEMORY_RULES(X)                            \
  X(kAllocatesNothing, "allocates-nothing")                    \
  X(kFreesOnce, "frees-once")                                  \
  X(kFreeWaits, "free-waits")                                  \
  X(kMemInfoFollows, "mem-info-follows")                       \
  X(kPageableIsTaken, "pageable-is-taken")                     \
  X(kPinnedIsReadLate, "pinned-is-read-late")                  \
  X(kPageableCopyIsDone, "pageable-copy-is-done")              \
  X(kSyncCopyWaits, "sync-copy-waits")                         \
  X(kDeviceCopyDoesNotWait, "device-copy-does-not-wait")       \
  X(kFillOfDeviceDoesNotWait, "fill-of-device-does-not-wait")  \
  X(kFillOfHostWaits, "fill-of-host-waits")                    \
  X(kFillAlignment, "fill-alignment")                          \
  X(kPitchHoldsRow, "pitch-holds-row")                         \
  X(kCubesAreCubes, "cubes-are-cubes")                         \
  X(kRegistersOnce, "registers-once")                          \
  X(kBufferIdsAreUnique, "buffer-ids-are-unique")              \
  X(kPoolsKeepThreshold, "pools-keep-threshold")               \
  X(kPoolsRelease, "pools-release")                            \
  X(kTrimKeeps, "trim-keeps")                                  \
  X(kDefaultPoolStays, "default-pool-stays")                   \
  X(kFreedIsUnused, "freed-is-unused")                         \
  X(kReuseIsOrdered, "reuse-is-ordered")                       \
  X(kEventReuseIsAsked, "event-reuse-is-asked")                \
  X(kOpportunismIsAsked, "opportunism-is-asked")               \
  X(kMappingsAreClosed, "mappings-are-closed")                 \
  X(kUnmapsWhole, "unmaps-whole")                              \
  X(kMappedStaysReserved, "mapped-stays-reserved")             \
  X(kMulticastKeepsMemory, "multicast-keeps-memory")           \
  X(kMulticastWaitsForItsTeam, "multicast-waits-for-its-team") \
  X(kSparseHasNoMemory, "sparse-has-no-memory")                \
  X(kTilesAreOfAPool, "tiles-are-of-a-pool")                   \
  X(kTilesInStreamOrder, "tiles-in-stream-order")              \
  X(kNewContextIsCurrent, "new-context-is-current")            \
  X(kDestroyPops, "destroy-pops")                              \
  X(kPrimaryIsCounted, "primary-is-counted")                   \
  X(kLimitsStay, "limits-stay")                                \
  X(kParametersAreCopied, "parameters-are-copied")             \
  X(kParametersComeOneWay, "parameters-come-one-way")          \
  X(kBlocksHaveLimits, "blocks-have-limits")                   \
  X(kSharedMemoryHasLimits, "shared-memory-has-limits")        \
  X(kCooperativeFits, "cooperative-fits")                      \
  X(kGlobalsHaveOneAddress, "globals-have-one-address")        \
  X(kUnknownNamesAreNotFound, "unknown-names-are-not-found")   \
  X(kAttributesAreKept, "attributes-are-kept")                 \
  X(kVersionsDecide, "versions-decide")                        \
  X(kUnknownErrorsHaveNoName, "unknown-errors-have-no-name")

#define PRORATA_SIM_GRAPH_RULES(X)                         \
  X(kGraphEdgesOrder, "graph-edges-order")                 \
  X(kGraphBranchesOverlap, "graph-branches-overlap")       \
  X(kGraphRelaunchWaits, "graph-relaunch-waits")           \
  X(kGraphWaitsForStream, "graph-waits-for-stream")        \
  X(kStreamWaitsForGraph, "stream-waits-for-graph")        \
  X(kGraphDisabledNodeRests, "graph-disabled-node-rests")  \
  X(kGraphMemoryLiveOnce, "graph-memory-live-once")        \
  X(kGraphMemoryAtLaunch, "graph-memory-at-launch")        \
  X(kCloneHasNoMemory, "clone-has-no-memory")              \
  X(kMovedGraphIsItsParents, "moved-graph-is-its-parents") \
  X(kGraphEdgesAreOnce, "graph-edges-are-once")            \
  X(kGraphNodesKeepTheirGraph, "graph-nodes-keep-their-graph")

#define PRORATA_SIM_GREEN_RULES(X)                             \
  X(kGreenHasItsSms, "green-has-its-sms")                      \
  X(kGreenRunsOnItsSms, "green-runs-on-its-sms")               \
  X(kGreenHoldsThePrimary, "green-holds-the-primary")          \
  X(kGreenIsNotMadeCurrent, "green-is-not-made-current")       \
  X(kGreenNeedsItsStream, "green-needs-its-stream")            \
  X(kGreenStreamsAreNonBlocking, "green-streams-non-blocking") \
  X(kGreenRecordIsOfAll, "green-record-is-of-all")             \
  X(kGreenWaitHoldsAll, "green-wait-holds-all")                \
  X(kGreenWaitsForItself, "green-waits-for-itself")            \
  X(kStreamKnowsItsGreen, "stream-knows-its-green")            \
  X(kSplitIsAligned, "split-is-aligned")                       \
  X(kSplitsAreApart, "splits-are-apart")                       \
  X(kSplitsAreNotSplit, "splits-are-not-split")                \
  X(kDescIsOfOneSplit, "desc-is-of-one-split")

#define PRORATA_SIM_EXTERNAL_RULES(X)                             \
  X(kExternalHasASize, "external-has-a-size")                     \
  X(kExternalTakesTheDescriptor, "external-takes-the-descriptor") \
  X(kExternalBuffersLieWithin, "external-buffers-lie-within")     \
  X(kExternalOutlivesItsImport, "external-outlives-its-import")

// Between processes and devices.
#define PRORATA_SIM_PROCESS_RULES(X)                       \
  X(kIpcNotItsOwn, "ipc-not-its-own")                      \
  X(kIpcOpensAreCounted, "ipc-opens-are-counted")          \
  X(kIpcOneContext, "ipc-one-context")                     \
  X(kIpcEventOrders, "ipc-event-orders")                   \
  X(kIpcEventNeedsItsFlag, "ipc-event-needs-its-flag")     \
  X(kShareableMustBeAsked, "shareable-must-be-asked")      \
  X(kImportedPoolGivesNone, "imported-pool-gives-none")    \
  X(kPeerAccessIsEnabled, "peer-access-is-enabled")        \
  X(kPeerAccessOnce, "peer-access-once")                   \
  X(kPeerCopyIsSerialized, "peer-copy-is-serialized")      \
  X(kMultiLaunchWaitsForAll, "multi-launch-waits-for-all") \
  X(kMultiLaunchOneEach, "multi-launch-one-each")

#define PRORATA_SIM_RULES(X)    \
  PRORATA_SIM_STREAM_RULES(X)   \
  PRORATA_SIM_CAPTURE_RULES(X)  \
  PRORATA_SIM_MEMORY_RULES(X)   \
  PRORATA_SIM_GRAPH_RULES(X)    \
  PRORATA_SIM_GREEN_RULES(X)    \
  PRORATA_SIM_EXTERNAL_RULES(X) \
  PRORATA_SIM_PROCESS_RULES(X)

enum class Rule : uint8_t {
#define X(constant, name) constant,
  PRORATA_SIM_RULES(X)
#undef X
      kCount,
};

using BrokenRules = std::bitset<static_cast<size_t>(Rule::kCount)>;

// kCount when there is none of that name.
Rule RuleNamed(std::string_view name);
std::string_view NameOf(Rule rule);

}  // namespace prorata::simgpu
