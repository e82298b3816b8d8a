#pragma once

// Memory that other processes of the share hold too: handles of it that are made and opened here.
// Who pays for it is the agent's to say (policy/memory/shared_blocks.h); this is the member's side.
//
// A holding is one block of such memory, by the number that its maker drew:
//   made here     `pays` from the start: the allocation's own charge
//   opened here   free of charge, until the agent says Take: then `bytes` are charged, and `pays`
// `holds` counts what keeps it here (allocations, openings, physical records). When the last is
// gone, one that does not pay is forgotten and the agent notified; one that pays stays charged
// until the agent has found somebody else to pay, or nobody:
//
//   driver frees    ReferenceGone(number, owed)     counts only: may run under locks of tables
//                   SettleReferences()              asks, waits, uncharges; under no lock
//
// The helper enters what an opening is answered with before the thread that asked goes on, since
// the next message may already be the Take of it. All functions are thread-safe.

#include <cstddef>
#include <cstdint>

#include "wire/messages.h"

namespace prorata::client {

// What kind of handle a name is a digest of.
enum class HandleKind : uint64_t { kIpc = 1, kPoolPointer, kDescriptor, kFabric };

// The name of a handle of so many bytes (a multiple of 8).
wire::MemoryName NameOfHandle(HandleKind kind, const void* handle, size_t bytes);

// The name of a descriptor that is passed between processes: its file's identity. False: it has
// none, being a device's node, as descriptors of NVIDIA's driver are; then nobody can tell what it
// leads to.
bool NameOfDescriptor(int fd, wire::MemoryName* name);

// A handle of memory that is charged here was made. `*number` is the memory's, or 0: then it gets
// one, with one hold, the caller's, when others may open it. Otherwise (no agent, too many) who
// opens the handle pays for itself, and *number stays as it was.
void NoteShared(const wire::MemoryName& name, uint32_t device, uint64_t bytes, uint64_t* number);

enum class Opening {
  kOwn,      // a handle of this very process, *number
  kHeld,     // of the share: *number with a hold, the caller's
  kUnknown,  // of somebody else: the caller charges it as its own
  kRefused,  // of a share that has not agreed
};
Opening BeginOpening(const wire::MemoryName& name, uint64_t* number);

// One hold less; `owed_bytes` of the device are uncharged with it, but when the holding was the
// payer's and this the last hold, only after the agent has settled it.
void ReferenceGone(uint64_t number, uint32_t device, uint64_t owed_bytes);
void SettleReferences();

// Helper only: messages of the agent, and a connection made again.
void OpeningAnswered(const wire::MemoryAnswer& answer);
void OpeningUnwanted(const wire::MemoryAnswer& answer);
void TakeMemory(uint64_t number);
void ReportReferences();

}  // namespace prorata::client
