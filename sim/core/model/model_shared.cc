#include <algorithm>

#include "sim/core/model/model.h"
#include "sim/core/model/model_lists.h"

// Memory and events that several processes hold.
//
// A block is on the account of the process whose share is the oldest: of its maker, and when that
// lets go or dies, of the one that has held it longest since. So the accounts of all processes and
// what only descriptors hold add up to what the device has given out, at every commit.
//
// Each function is one transaction, so that a kill leaves a share, or none, but never half of one.

namespace prorata::simgpu {

Index Model::PayerOf(Index block) const {
  const Index oldest = state().blocks[block].shares.head;
  return oldest == 0 ? 0 : state().shares[oldest].process;
}

void Model::Charge(Index process, Index index, bool pays) {
  if (process == 0) return;
  const BlockRecord& block = state().blocks[index];
  uint32_t& slabs = tx_.Mut(state().processes[process].block_slabs[block.device]);
  slabs = pays ? slabs + block.slabs : slabs - block.slabs;
}

Answer<Index> Model::AddBlock(Index context_index, std::span<const Extent> extents) {
  const ContextRecord& context = state().contexts[context_index];
  const auto device = static_cast<int>(context.device);
  const uint64_t slab_bytes = device_config(device).slab_bytes;
  const Index index = Take(state().free_blocks, kMaxBlocks, Kind::kBlock);
  if (index == 0) return std::unexpected(Code::kOutOfResources);
  BlockRecord& block = tx_.Mut(state().blocks[index]);
  const Slot slot = block.slot;
  block = {};
  block.slot = slot;
  block.device = context.device;
  for (const Extent& extent : extents) {
    const uint64_t first = extent.offset_bytes / slab_bytes;
    const uint64_t count = extent.length_bytes / slab_bytes;
    const uint32_t slab_count = state().devices[device].slab_count;
    if (first > slab_count || count > slab_count - first) {
      return std::unexpected(Code::kInvalidValue);
    }
    const uint32_t* owner = owners(device) + first;
    if (std::any_of(owner, owner + count, [&](uint32_t other) { return other != context_index; })) {
      return std::unexpected(Code::kInvalidValue);
    }
    std::fill_n(tx_.MutRange(owner, count), count, kOfBlock | index);
    block.slabs += static_cast<uint32_t>(count);
  }
  tx_.Mut(context.slabs) -= block.slabs;
  const auto share = AddShare(index, context.process, context_index);
  if (share) tx_.Mut(state().shares[*share].maker) = true;
  return share;
}

Answer<Index> Model::AddShare(Index block, Index process, Index context) {
  const Index index = Take(state().free_shares, kMaxShares, Kind::kShare);
  if (index == 0) return std::unexpected(Code::kOutOfResources);
  ShareRecord& share = tx_.Mut(state().shares[index]);
  const Slot slot = share.slot;
  share = {};
  share.slot = slot;
  share.target = block;
  share.process = process;
  share.context = context;
  const bool first = state().blocks[block].shares.head == 0;
  BlockShares::Append(tx_, state().blocks[block].shares, index);
  ProcessShares::Append(tx_, state().processes[process].shares, index);
  if (first) Charge(process, block, true);
  return index;
}

std::vector<Extent> Model::DropShare(Index index) {
  const ShareRecord& share = state().shares[index];
  const Index process = share.process;
  const Index block = share.target;
  if (share.maker) {
    Index next = 0;
    for (Index at = state().blocks[block].exports.head; at != 0; at = next) {
      next = ExportList::Next(state(), at);
      if (state().exports[at].kind == ExportKind::kAddress) DropExport(at);
    }
  }
  const Index paid = PayerOf(block);
  BlockShares::Remove(tx_, state().blocks[block].shares, index);
  ProcessShares::Remove(tx_, state().processes[process].shares, index);
  GiveBack(state().free_shares, Kind::kShare, index);
  const Index pays = PayerOf(block);
  if (pays != paid) {
    Charge(paid, block, false);
    Charge(pays, block, true);
  }
  if (pays != 0 || state().blocks[block].descriptors != 0) return {};
  return FreeBlock(block, process);
}

// Nobody holds it. Its slabs become `wiper`'s to wipe.
std::vector<Extent> Model::FreeBlock(Index index, Index wiper) {
  const BlockRecord& block = state().blocks[index];
  const auto device_index = static_cast<int>(block.device);
  const uint64_t slab_bytes = device_config(device_index).slab_bytes;
  const std::vector<Extent> extents = OwnedSlabs(device_index, kOfBlock | index);
  for (const Extent& extent : extents) {
    const uint64_t count = extent.length_bytes / slab_bytes;
    std::fill_n(tx_.MutRange(owners(device_index) + extent.offset_bytes / slab_bytes, count), count,
                kScrubbing | wiper);
  }
  DeviceRecord& device = tx_.Mut(state().devices[device_index]);
  device.used_slabs -= block.slabs;
  device.scrubbing_slabs += block.slabs;
  tx_.Mut(state().processes[wiper].scrubbing) += block.slabs;
  GiveBack(state().free_blocks, Kind::kBlock, index);
  return extents;
}

Answer<Index> Model::AddExport(ExportKind kind, Index share, const Extent& piece, uint64_t pool,
                               uint64_t cookie) {
  const Index index = Take(state().free_exports, kMaxExports, Kind::kExport);
  if (index == 0) return std::unexpected(Code::kOutOfResources);
  ExportRecord& made = tx_.Mut(state().exports[index]);
  const Slot slot = made.slot;
  made = {};
  made.slot = slot;
  made.kind = kind;
  made.block = state().shares[share].target;
  made.process = state().shares[share].process;
  made.process_generation = state().processes[made.process].slot.generation;
  made.device = state().blocks[made.block].device;
  made.cookie = cookie;
  made.offset_bytes = piece.offset_bytes;
  made.length_bytes = piece.length_bytes;
  made.pool = pool;
  ExportList::Append(tx_, state().blocks[made.block].exports, index);
  if (kind == ExportKind::kDescriptor) {
    DescriptorList::Append(tx_, state().descriptors, index);
    tx_.Mut(state().blocks[made.block].descriptors) += 1;
  }
  return index;
}

Answer<Index> Model::AddPoolExport(Index process, int device, uint64_t cookie) {
  const Index index = Take(state().free_exports, kMaxExports, Kind::kExport);
  if (index == 0) return std::unexpected(Code::kOutOfResources);
  ExportRecord& made = tx_.Mut(state().exports[index]);
  const Slot slot = made.slot;
  made = {};
  made.slot = slot;
  made.kind = ExportKind::kPool;
  made.process = process;
  made.process_generation = state().processes[process].slot.generation;
  made.device = static_cast<uint32_t>(device);
  made.cookie = cookie;
  ExportList::Append(tx_, state().processes[process].exports, index);
  return index;
}

// Of a descriptor: only where its block lives on, or goes in the same transaction.
void Model::DropExport(Index index) {
  const ExportRecord& gone = state().exports[index];
  if (gone.kind == ExportKind::kPool) {
    ExportList::Remove(tx_, state().processes[gone.process].exports, index);
  } else {
    ExportList::Remove(tx_, state().blocks[gone.block].exports, index);
  }
  if (gone.kind == ExportKind::kDescriptor) {
    DescriptorList::Remove(tx_, state().descriptors, index);
    tx_.Mut(state().blocks[gone.block].descriptors) -= 1;
  }
  GiveBack(state().free_exports, Kind::kExport, index);
}

// Whoever finds it dead may be an observer, which cannot own slabs while it wipes them. So they are
// wiped while the descriptor still holds the block: a kill in between leaves it to the next.
void Model::DropDescriptor(Index index, const Wipe& wipe) {
  const Index block = state().exports[index].block;
  const BlockRecord& record = state().blocks[block];
  if (record.descriptors == 1 && record.shares.head == 0) {
    const auto device = static_cast<int>(record.device);
    for (const Extent& extent : OwnedSlabs(device, kOfBlock | block)) {
      if (wipe) wipe(device, extent);
      const auto count =
          static_cast<uint32_t>(extent.length_bytes / device_config(device).slab_bytes);
      FreeSlabRun(device, extent);
      tx_.Mut(state().devices[device].used_slabs) -= count;
      tx_.Mut(record.slabs) -= count;
      tx_.Commit();
    }
    DropExport(index);
    GiveBack(state().free_blocks, Kind::kBlock, block);
  } else {
    DropExport(index);
  }
  tx_.Commit();
}

// --- Events -------------------------------------------------------------------------------------

Answer<Index> Model::AddEventShare(Index event, Index context) {
  const Index index = Take(state().free_shares, kMaxShares, Kind::kShare);
  if (index == 0) return std::unexpected(Code::kOutOfResources);
  ShareRecord& share = tx_.Mut(state().shares[index]);
  const Slot slot = share.slot;
  share = {};
  share.slot = slot;
  share.of_event = true;
  share.target = event;
  share.process = state().contexts[context].process;
  share.context = context;
  EventShares::Append(tx_, state().events[event].shares, index);
  ProcessShares::Append(tx_, state().processes[share.process].shares, index);
  return index;
}

void Model::DropEventShare(Index index) {
  const ShareRecord& share = state().shares[index];
  EventShares::Remove(tx_, state().events[share.target].shares, index);
  ProcessShares::Remove(tx_, state().processes[share.process].shares, index);
  GiveBack(state().free_shares, Kind::kShare, index);
}

bool Model::MayRecord(Index event, Index context) const {
  if (state().events[event].context == context) return true;
  for (Index share = state().events[event].shares.head; share != 0;
       share = EventShares::Next(state(), share)) {
    if (state().shares[share].context == context) return true;
  }
  return false;
}

}  // namespace prorata::simgpu
