#include <algorithm>
#include <bit>

#include "sim/core/model/model.h"

// Device memory in slabs. Per device there is an owner for each slab (a context; a block that
// several may hold; or who is wiping it; 0 when free) and a bit for each that is not free, so that
// a search skips 64 at a time.

namespace prorata::simgpu {

namespace {

// First free slab at or after `from`; `limit` when there is none.
uint32_t NextFree(const uint64_t* used, uint32_t from, uint32_t limit) {
  while (from < limit) {
    const uint64_t free_bits = ~used[from / 64] >> (from % 64);
    if (free_bits != 0) {
      return std::min(limit, from + static_cast<uint32_t>(std::countr_zero(free_bits)));
    }
    from = (from / 64 + 1) * 64;
  }
  return limit;
}

// First used slab at or after `from`, but no further than `limit`.
uint32_t NextUsed(const uint64_t* used, uint32_t from, uint32_t limit) {
  while (from < limit) {
    const uint64_t used_bits = used[from / 64] >> (from % 64);
    if (used_bits != 0) {
      return std::min(limit, from + static_cast<uint32_t>(std::countr_zero(used_bits)));
    }
    from = (from / 64 + 1) * 64;
  }
  return limit;
}

struct Run {
  uint32_t first;
  uint32_t count;
};

// One run of `count` if there is one, looking from `start` on; else the first free runs that add up
// to it. The caller knows that so many are free.
std::vector<Run> FindRuns(const uint64_t* used, uint32_t slab_count, uint32_t start,
                          uint32_t count) {
  for (const auto [from, to] : {Run{start, slab_count}, Run{0, slab_count}}) {
    for (uint32_t at = NextFree(used, from, to); at < to;) {
      const uint32_t end = NextUsed(used, at, std::min(to, at + count));
      if (end - at == count) return {{at, count}};
      at = NextFree(used, end, to);
    }
  }
  std::vector<Run> runs;
  for (uint32_t at = NextFree(used, 0, slab_count); at < slab_count && count > 0;) {
    const uint32_t end = NextUsed(used, at, std::min(slab_count, at + count));
    runs.push_back({at, end - at});
    count -= end - at;
    at = NextFree(used, end, slab_count);
  }
  return runs;
}

void SetBits(uint64_t* used, Run run, bool value) {
  for (uint32_t slab = run.first; slab < run.first + run.count; ++slab) {
    const uint64_t bit = uint64_t{1} << (slab % 64);
    used[slab / 64] = value ? used[slab / 64] | bit : used[slab / 64] & ~bit;
  }
}

}  // namespace

const uint32_t* Model::owners(int device) const {
  return reinterpret_cast<const uint32_t*>(reinterpret_cast<const unsigned char*>(&state()) +
                                           state().owner_offset[device]);
}

const uint64_t* Model::used_bits(int device) const {
  return reinterpret_cast<const uint64_t*>(reinterpret_cast<const unsigned char*>(&state()) +
                                           state().used_offset[device]);
}

MemoryInfo Model::Memory(int index) const {
  const DeviceRecord& device = state().devices[index];
  const DeviceConfig& config = device_config(index);
  return {config.memory_bytes,
          config.memory_bytes - device.context_bytes - device.used_slabs * config.slab_bytes};
}

// Before whatever took memory is committed, so that no kill comes between the two.
void Model::NotePeaks() {
  for (size_t index = 0; index < config_->devices.size(); ++index) {
    const DeviceRecord& device = state().devices[index];
    const MemoryInfo memory = Memory(static_cast<int>(index));
    const uint64_t used_bytes = memory.total_bytes - memory.free_bytes;
    if (used_bytes > device.peak_bytes) tx_.Mut(device.peak_bytes) = used_bytes;
  }
}

Answer<std::vector<Extent>> Model::AllocSlabs(Index index, uint64_t bytes) {
  const ContextRecord& context = state().contexts[index];
  const auto device_index = static_cast<int>(context.device);
  const DeviceRecord& device = state().devices[device_index];
  const uint64_t slab_bytes = device_config(device_index).slab_bytes;
  if (bytes == 0) return std::unexpected(Code::kInvalidValue);
  if (bytes > Memory(device_index).free_bytes) return std::unexpected(Code::kOutOfMemory);
  const auto count = static_cast<uint32_t>((bytes + slab_bytes - 1) / slab_bytes);
  if (count * slab_bytes > Memory(device_index).free_bytes) {
    return std::unexpected(Code::kOutOfMemory);
  }
  if (count > device.slab_count - device.used_slabs - device.scrubbing_slabs) {
    return std::unexpected(Code::kNotReady);
  }
  const uint64_t* used = used_bits(device_index);
  const std::vector<Run> runs = FindRuns(used, device.slab_count, device.next_slab, count);
  std::vector<Extent> extents;
  extents.reserve(runs.size());
  for (const Run run : runs) {
    uint32_t* owner = tx_.MutRange(owners(device_index) + run.first, run.count);
    std::fill_n(owner, run.count, index);
    const uint32_t first_word = run.first / 64;
    const uint32_t last_word = (run.first + run.count - 1) / 64;
    tx_.MutRange(used + first_word, last_word - first_word + 1);
    SetBits(const_cast<uint64_t*>(used), run, true);
    extents.push_back({run.first * slab_bytes, run.count * slab_bytes});
  }
  DeviceRecord& changed = tx_.Mut(device);
  changed.used_slabs += count;
  changed.next_slab = (runs.back().first + runs.back().count) % device.slab_count;
  tx_.Mut(context.slabs) += count;
  return extents;
}

Code Model::MoveSlabs(Index from, Index to, std::span<const Extent> extents) {
  const ContextRecord& source = state().contexts[from];
  const ContextRecord& target = state().contexts[to];
  const auto device_index = static_cast<int>(source.device);
  if (source.device != target.device || source.process != target.process) {
    return Code::kInvalidValue;
  }
  const uint64_t slab_bytes = device_config(device_index).slab_bytes;
  const uint64_t slab_count = state().devices[device_index].slab_count;
  for (const Extent& extent : extents) {
    const uint64_t first = extent.offset_bytes / slab_bytes;
    const uint64_t count = extent.length_bytes / slab_bytes;
    if (first > slab_count || count > slab_count - first) return Code::kInvalidValue;
    const uint32_t* owner = owners(device_index) + first;
    if (std::any_of(owner, owner + count, [&](uint32_t other) { return other != from; })) {
      return Code::kInvalidValue;
    }
    std::fill_n(tx_.MutRange(owner, count), count, to);
    tx_.Mut(source.slabs) -= static_cast<uint32_t>(count);
    tx_.Mut(target.slabs) += static_cast<uint32_t>(count);
  }
  return Code::kOk;
}

Code Model::BeginFree(Index index, Index process, std::span<const Extent> extents) {
  const ContextRecord& context = state().contexts[index];
  const auto device_index = static_cast<int>(context.device);
  const DeviceRecord& device = state().devices[device_index];
  const uint64_t slab_bytes = device_config(device_index).slab_bytes;
  for (const Extent& extent : extents) {
    const uint64_t first = extent.offset_bytes / slab_bytes;
    const uint64_t count = extent.length_bytes / slab_bytes;
    if (extent.offset_bytes % slab_bytes != 0 || extent.length_bytes % slab_bytes != 0 ||
        first > device.slab_count || count > device.slab_count - first) {
      return Code::kInvalidValue;
    }
    const uint32_t* owner = owners(device_index) + first;
    if (std::any_of(owner, owner + count, [&](uint32_t other) { return other != index; })) {
      return Code::kInvalidValue;
    }
    std::fill_n(tx_.MutRange(owner, count), count, kScrubbing | process);
    DeviceRecord& changed = tx_.Mut(device);
    changed.used_slabs -= static_cast<uint32_t>(count);
    changed.scrubbing_slabs += static_cast<uint32_t>(count);
    tx_.Mut(context.slabs) -= static_cast<uint32_t>(count);
    tx_.Mut(state().processes[process].scrubbing) += static_cast<uint32_t>(count);
  }
  return Code::kOk;
}

void Model::EndFree(int device_index, Index process, std::span<const Extent> extents) {
  const DeviceRecord& device = state().devices[device_index];
  const uint64_t slab_bytes = device_config(device_index).slab_bytes;
  for (const Extent& extent : extents) {
    const Run run{static_cast<uint32_t>(extent.offset_bytes / slab_bytes),
                  static_cast<uint32_t>(extent.length_bytes / slab_bytes)};
    if (run.count == 0) continue;
    FreeSlabRun(device_index, extent);
    tx_.Mut(device.scrubbing_slabs) -= run.count;
    tx_.Mut(state().processes[process].scrubbing) -= run.count;
  }
}

// Nobody's any more, whoever's they were: wiped, and not yet uncounted.
void Model::FreeSlabRun(int device, const Extent& extent) {
  const uint64_t slab_bytes = device_config(device).slab_bytes;
  const Run run{static_cast<uint32_t>(extent.offset_bytes / slab_bytes),
                static_cast<uint32_t>(extent.length_bytes / slab_bytes)};
  std::fill_n(tx_.MutRange(owners(device) + run.first, run.count), run.count, 0u);
  const uint64_t* used = used_bits(device);
  const uint32_t first_word = run.first / 64;
  tx_.MutRange(used + first_word, (run.first + run.count - 1) / 64 - first_word + 1);
  SetBits(const_cast<uint64_t*>(used), run, false);
}

std::vector<Extent> Model::OwnedSlabs(int device_index, uint32_t owner) const {
  const uint64_t slab_bytes = device_config(device_index).slab_bytes;
  const uint32_t* table = owners(device_index);
  const uint32_t slab_count = state().devices[device_index].slab_count;
  std::vector<Extent> extents;
  for (uint32_t slab = 0; slab < slab_count; ++slab) {
    if (table[slab] != owner) continue;
    if (!extents.empty() &&
        extents.back().offset_bytes + extents.back().length_bytes == slab * slab_bytes) {
      extents.back().length_bytes += slab_bytes;
    } else {
      extents.push_back({slab * slab_bytes, slab_bytes});
    }
  }
  return extents;
}

// Wiped before it is free: a kill between the two leaves it owned, and the next one wipes again.
void Model::ReleaseOwner(int device, uint32_t owner, const Wipe& wipe) {
  const bool scrubbing = (owner & kScrubbing) != 0;
  const Index process = scrubbing ? owner & ~kScrubbing : state().contexts[owner].process;
  for (const Extent& extent : OwnedSlabs(device, owner)) {
    if (wipe) wipe(device, extent);
    if (!scrubbing) BeginFree(owner, process, {&extent, 1});
    EndFree(device, process, {&extent, 1});
    tx_.Commit();
  }
}

}  // namespace prorata::simgpu
