#include "sim/cuda/memory/heap.h"

#include "sim/core/machine.h"
#include "sim/cuda/memory/arena.h"

namespace prorata::simgpu::driver {

void Heap::Open(Machine* machine, Handle context, Arena* arena) {
  machine_ = machine;
  context_ = context;
  arena_ = arena;
}

Code Heap::NewRange(uint64_t bytes, uint64_t* address) {
  auto extents = machine_->AllocSlabs(context_, bytes);
  if (!extents) return extents.error();
  uint64_t total = 0;
  for (const Extent& extent : *extents) total += extent.length_bytes;
  const uint64_t at = arena_->Take(total);
  if (at == 0 || !arena_->Map(at, *extents)) {
    if (at != 0) arena_->Give(at, total);
    machine_->FreeSlabs(context_, *extents);
    return Code::kOutOfMemory;
  }
  ranges_[at] = {total, std::move(*extents)};
  *address = at;
  return Code::kOk;
}

void Heap::DropRange(std::map<uint64_t, Range>::iterator range) {
  // Unmapped first: the pages are punched out of the file when the slabs are freed, and a mapping
  // left over would show the next owner's bytes.
  arena_->Unmap(range->first, range->second.bytes);
  if (range->second.share != 0) {
    machine_->DropShare(range->second.share);
  } else {
    machine_->FreeSlabs(context_, range->second.extents);
  }
  arena_->Give(range->first, range->second.bytes);
  ranges_.erase(range);
}

int Heap::FindUnits(const Slab& slab, unsigned units) {
  if (kUnits - slab.used_units < units) return -1;
  unsigned run = 0;
  for (unsigned i = 0; i < kUnits; ++i) {
    run = slab.used[i] ? 0 : run + 1;
    if (run == units) return static_cast<int>(i + 1 - units);
  }
  return -1;
}

uint64_t Heap::PlaceSmall(uint64_t slab_address, Slab* slab, unsigned at, unsigned units) {
  for (unsigned i = at; i < at + units; ++i) slab->used[i] = true;
  slab->used_units += units;
  const uint64_t address = slab_address + at * kAlignment;
  small_[address] = units;
  return address;
}

Code Heap::Allocate(uint64_t bytes, uint64_t* address) {
  const bool shares = bytes <= kSmallLimit && arena_->slab_bytes() == kUnits * kAlignment;
  if (!shares) return NewRange(bytes, address);
  const auto units = static_cast<unsigned>((bytes + kAlignment - 1) / kAlignment);
  for (auto& [slab_address, slab] : slabs_) {
    const int at = FindUnits(slab, units);
    if (at < 0) continue;
    *address = PlaceSmall(slab_address, &slab, static_cast<unsigned>(at), units);
    return Code::kOk;
  }
  uint64_t slab_address;
  if (Code code = NewRange(arena_->slab_bytes(), &slab_address); code != Code::kOk) return code;
  *address = PlaceSmall(slab_address, &slabs_[slab_address], 0, units);
  return Code::kOk;
}

Code Heap::AllocateSlabs(uint64_t bytes, uint64_t* address) { return NewRange(bytes, address); }

bool Heap::Free(uint64_t address) {
  if (auto small = small_.find(address); small != small_.end()) {
    const uint64_t slab_address = address & ~(arena_->slab_bytes() - 1);
    auto slab = slabs_.find(slab_address);
    const auto first = static_cast<unsigned>((address - slab_address) / kAlignment);
    for (unsigned i = first; i < first + small->second; ++i) slab->second.used[i] = false;
    slab->second.used_units -= small->second;
    small_.erase(small);
    if (slab->second.used_units == 0) {
      slabs_.erase(slab);
      DropRange(ranges_.find(slab_address));
    }
    return true;
  }
  auto range = ranges_.find(address);
  if (range == ranges_.end() || slabs_.contains(address)) return false;
  DropRange(range);
  return true;
}

// Those who open it get all of the range, as they do on a real device: the slab is the smallest
// thing that can be mapped.
Code Heap::Export(uint64_t address, uint64_t bytes, const ShareName& pool, ShareName* name) {
  const auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return Code::kInvalidValue;
  auto& [base, range] = *std::prev(after);
  if (address - base >= range.bytes) return Code::kInvalidValue;
  if (range.share == 0) {
    const auto shared = machine_->ShareSlabs(context_, range.extents);
    if (!shared) return shared.error();
    range.share = shared->share;
  }
  const auto made = machine_->ExportAddress(range.share, address - base, bytes, pool);
  if (!made) return made.error();
  *name = *made;
  return Code::kOk;
}

bool Heap::Move(uint64_t address, Heap* to) {
  auto range = ranges_.find(address);
  if (range == ranges_.end()) return false;
  const Code code = range->second.share != 0
                        ? machine_->PassShare(range->second.share, to->context_)
                        : machine_->MoveSlabs(context_, to->context_, range->second.extents);
  if (code != Code::kOk) return false;
  to->ranges_[address] = std::move(range->second);
  ranges_.erase(range);
  return true;
}

void Heap::Close() {
  for (const auto& [address, range] : ranges_) {
    arena_->Unmap(address, range.bytes);
    arena_->Give(address, range.bytes);
  }
  ranges_.clear();
  slabs_.clear();
  small_.clear();
}

}  // namespace prorata::simgpu::driver
