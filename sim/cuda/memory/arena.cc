#include "sim/cuda/memory/arena.h"

#include <sys/mman.h>

#include <algorithm>

namespace prorata::simgpu::driver {
namespace {

constexpr int kReserveFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

uint64_t ReserveAnywhere(uint64_t bytes, uint64_t alignment, uint64_t hint) {
  if (hint != 0 && hint % alignment == 0) {
    void* at = mmap(Pointer(hint), bytes, PROT_NONE, kReserveFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == Pointer(hint)) return hint;
    if (at != MAP_FAILED) munmap(at, bytes);  // an old kernel that took the hint for a wish
  }
  void* at = mmap(nullptr, bytes + alignment, PROT_NONE, kReserveFlags, -1, 0);
  if (at == MAP_FAILED) return 0;
  const auto start = reinterpret_cast<uint64_t>(at);
  const uint64_t aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned > start) munmap(at, aligned - start);
  const uint64_t tail = start + alignment - aligned;
  if (tail > 0) munmap(Pointer(aligned + bytes), tail);
  return aligned;
}

void ReserveAt(uint64_t address, uint64_t bytes) {
  // Cannot be reported to anybody, and leaves the old mapping: its memory shows until the address
  // is used again, which is no worse than a program that reads what it freed.
  [[maybe_unused]] void* reserved =
      mmap(Pointer(address), bytes, PROT_NONE, kReserveFlags | MAP_FIXED, -1, 0);
}

bool MapExtents(int fd, uint64_t address, std::span<const Extent> extents, int protection) {
  uint64_t at = address;
  for (const Extent& extent : extents) {
    void* mapped = mmap(Pointer(at), extent.length_bytes, protection, MAP_SHARED | MAP_FIXED, fd,
                        static_cast<off_t>(extent.offset_bytes));
    if (mapped == MAP_FAILED) {
      if (at > address) ReserveAt(address, at - address);
      return false;
    }
    at += extent.length_bytes;
  }
  return true;
}

Arena::Arena(int memory_fd, uint64_t bytes, uint64_t slab_bytes)
    : fd_(memory_fd), slab_bytes_(slab_bytes) {
  for (bytes_ = RoundUp(bytes); bytes_ >= slab_bytes_; bytes_ = RoundUp(bytes_ / 2)) {
    base_ = ReserveAnywhere(bytes_, slab_bytes_, 0);
    if (base_ != 0 || bytes_ == slab_bytes_) break;
  }
  if (base_ == 0) bytes_ = 0;
  if (bytes_ > 0) free_[base_] = bytes_;
}

uint64_t Arena::Take(uint64_t bytes) {
  bytes = RoundUp(bytes);
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    if (hole->second < bytes) continue;
    const uint64_t address = hole->first;
    const uint64_t rest = hole->second - bytes;
    free_.erase(hole);
    if (rest > 0) free_[address + bytes] = rest;
    return address;
  }
  return 0;
}

void Arena::Give(uint64_t address, uint64_t bytes) {
  bytes = RoundUp(bytes);
  auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      previous->second += bytes;
      return;
    }
  }
  free_[address] = bytes;
}

bool Arena::Map(uint64_t address, std::span<const Extent> extents) {
  return MapExtents(fd_, address, extents, PROT_READ | PROT_WRITE);
}

void Arena::Unmap(uint64_t address, uint64_t bytes) { ReserveAt(address, RoundUp(bytes)); }

}  // namespace prorata::simgpu::driver
