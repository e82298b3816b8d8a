#pragma once

// The messages between a member and the agent, on the member socket of its share (a SOCK_STREAM
// unix socket at SHARE_DIR/socket). The control socket of the agent uses the same frames with one
// type, kControlJson, whose body is JSON (control.h).
//
//   frame:  | u32 body_bytes | u16 type | u16 version | body ... |      little-endian
//
// A body of a member message is the struct of that name below, byte for byte, every field aligned.
// A body longer than the struct is a newer version's: the known part is read. A shorter one is an
// error, and closes the connection. Numbers of types are never used again. Freestanding.

#include <cstdint>

namespace prorata::wire {

inline constexpr uint16_t kWireVersion = 1;
inline constexpr uint32_t kFrameHeaderBytes = 8;
inline constexpr uint32_t kMaxMemberBodyBytes = 256;
inline constexpr uint32_t kMaxControlBodyBytes = 1 << 20;
// 256 shares on 16 GPUs each take 3 MiB without their programs.
inline constexpr uint32_t kMaxControlReplyBytes = 6 << 20;

enum class MessageType : uint16_t {
  kJoin = 1,            // member -> agent, with the usage memfd (SCM_RIGHTS) on its first byte
  kWelcome = 2,         // agent -> member
  kGrantRequest = 3,    // member -> agent
  kGrantReply = 4,      // agent -> member; the new grant already stands in the limits file
  kContextMade = 5,     // member -> agent: a context was made, or something else that takes memory
                        // and does not say how much; `reserved_bytes` were charged for it
  kContextSettled = 6,  // agent -> member: what it really took, by NVML
  kLeaseWanted = 7,     // member -> agent: a launch waits for the lease
  kLeaseIdle = 8,       // member -> agent: nothing queued, nothing running, since idle_report_us
  kLeaseDrained = 9,    // member -> agent: the work launched under the closed lease is done
  kLeaseChanged = 10,   // agent -> member: the lease word changed (wakes the helper thread's poll)
  kRefused = 11,        // agent -> member, then the connection closes
  kUsageWanted = 20,    // anybody -> agent, joined or not
  kUsageShown = 21,     // agent -> who asked, with a member's usage memory, to read; see there
  kMemoryShared = 24,   // member -> agent: memory of mine has a handle that others may open
  kMemoryOpening = 25,  // member -> agent: a handle is about to be opened; whose is it?
  kMemoryLetGo = 26,    // member -> agent: shared memory that I held is freed or closed here
  kMemoryAnswer = 27,   // agent -> member, to the three above (where their id is not 0)
  kMemoryTake = 28,     // agent -> member: from now on you pay for memory that you opened
  kMemoryTaken = 29,    // member -> agent: I do, or have closed it already
  kControlJson = 64,    // both ways on the control socket
};

struct Join {
  uint32_t layout_version;  // kLimitsVersion
  // The process's number in its own pid namespace, believed: only its own share is shown it. 0: not
  // told (older clients), so the agent looks it up.
  uint32_t inner_pid;
  uint64_t epoch_seen;     // epoch of the limits file as mapped
  uint64_t previous_slot;  // slot held before a restart of the agent, or kNoSlot
};
inline constexpr uint64_t kNoSlot = ~uint64_t{0};

struct Welcome {
  uint32_t slot;  // row of this member in LimitsFile::grants
  uint32_t reserved;
  uint64_t epoch;
};

inline constexpr uint32_t kNoWait = 0;
inline constexpr uint32_t kWaitForever = ~uint32_t{0};

struct GrantRequest {
  uint64_t id;      // echoed in the reply
  uint32_t device;  // index in LimitsFile::devices
  // For how long the answer may be waited for where the device is full and the share is not, in
  // milliseconds (kNoWait, kWaitForever), unless the share's on_full changes meanwhile.
  uint32_t wait_ms;
  uint64_t needed_bytes;  // what `used` must be able to reach
};

enum class GrantResult : uint32_t {
  kGranted = 0,     // grant >= needed_bytes now
  kShareFull = 1,   // all slack was recalled and the share's own limit is reached
  kDeviceFull = 2,  // the limit would allow it; the device has no more, or had not in wait_ms
};

struct GrantReply {
  uint64_t id;
  GrantResult result;
  uint32_t reserved;
  uint64_t granted_bytes;
};

struct ContextMade {
  uint64_t id;
  uint32_t device;
  uint32_t what;  // kMadeContext: the agent learns from it what a context takes; else kMadeOther
  uint64_t reserved_bytes;
};

// ContextSettled::measured. What the audit found (MemberRow) stays charged as that, and is no part
// of it. After kMadeContext, kMeasured: overhead_bytes is all other overhead of the member on the
// device, and the grant covers it. After kMadeOther, kTook: overhead_bytes is what was taken that
// is charged nowhere, the reservation included; the grant covers it. kTookTooMuch: it does not, for
// the share cannot.
inline constexpr uint32_t kNotMeasured = 0, kMeasured = 1, kTook = 2, kTookTooMuch = 3;
inline constexpr uint32_t kMadeContext = 0, kMadeOther = 1;

struct ContextSettled {
  uint64_t id;
  uint32_t device;
  uint32_t measured;        // kNotMeasured: NVML gave no figure; keep the reservation
  uint64_t overhead_bytes;  // see kMeasured, kTook
};

// Memory that several members hold (policy/memory/shared_blocks.h decides). A block is named by
// `number`, which the member that made it drew at random; handles of it by a digest of what passes
// between the processes: the 64 bytes of a handle, or the identity of the file behind a descriptor.
struct MemoryName {
  uint64_t word[2];  // never all zero for a handle
};

struct MemoryShared {
  uint64_t id;  // 0: no answer is wanted (joining again)
  uint64_t number;
  uint64_t bytes;   // what a member that pays for it is charged
  MemoryName name;  // all zero: none (a member that opened it joins again)
  uint32_t device;
  uint32_t pays;  // 1: it is charged to the sender
};

struct MemoryOpening {
  uint64_t id;
  MemoryName name;
};

struct MemoryLetGo {
  uint64_t id;
  uint64_t number;
};

enum class MemoryResult : uint32_t {
  kNoted = 0,    // of this share; of an opening: the sender is now one of those who hold it
  kUnknown = 1,  // of no share here: the opener pays for itself
  kForeign = 2,  // of another share that has not agreed to it: not to be opened
  kAgreed = 3,   // of another share that has: the opener pays for itself
  kTooMany = 4,  // the agent keeps no more: who opens it pays for itself
};

struct MemoryAnswer {
  uint64_t id;
  uint64_t number;
  uint64_t bytes;
  MemoryResult result;
  uint32_t device;
  uint32_t held;  // 1: the answer to an opening, by which the sender holds the block now
  uint32_t reserved;
};

struct MemoryTake {
  uint64_t number;
};

struct MemoryTaken {
  uint64_t number;
  uint32_t taken;  // 1: charged; 0: it was closed meanwhile
  uint32_t reserved;
};

struct LeaseEvent {  // kLeaseWanted, kLeaseIdle, kLeaseDrained, kLeaseChanged
  uint32_t device;
  uint32_t sequence;  // the lease word's sequence that the sender saw
};

// Who reads what a share has in use (cuMemGetInfo, NVML) maps the usage memory of its members. The
// answer is one kUsageShown for each member from `first_slot` on that has joined, each with the
// descriptor (SCM_RIGHTS) of its memory, opened for reading, on its first byte; then one without a
// descriptor, whose slot is where to ask on, or kMaxMembers: that was all.
struct UsageWanted {
  uint32_t layout_version;  // kLimitsVersion
  uint32_t first_slot;
};
struct UsageShown {
  uint32_t slot;
  uint32_t has_usage;  // 1: a descriptor came along
  uint64_t serial;     // MemberRow::usage_serial
};

struct Refused {
  uint32_t reason;  // RefusedReason
  uint32_t detail;  // kOtherUser: the owner's user id; else 0
};
enum class RefusedReason : uint32_t {
  kMalformed = 1,
  kVersion = 2,
  kShareEnded = 3,
  kTooManyMembers = 4,
  kNotAllowed = 5,      // the kernel does not say who it is, or it is a member of another share
  kOtherUser = 6,       // of a user that the share's owner has not allowed
  kOtherContainer = 7,  // the share is another container's until that ends
};

}  // namespace prorata::wire
