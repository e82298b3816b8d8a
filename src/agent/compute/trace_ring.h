#pragma once

// The last that a device did, in a ring of fixed size: so that it costs the agent some nanoseconds
// an entry, no allocation, and bounded memory, and can always be on. What people want to see has
// mostly happened before they ask.
//
// A share is a lane: its name must outlive it as long as the ring has entries of it, and a name
// that is used again is another share. Lanes of which the ring has nothing any more are forgotten
// when another one is added, so there are at most as many as shares and entries.
//
// No clock; times come in, and never go back. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "api/trace.h"

namespace prorata::agent {

class TraceRing {
 public:
  using Entry = api::TraceEntry;
  // 2 MiB, touched as it fills. Two busy shares write some 300 entries a second, so it is three
  // minutes; a share more costs ten a second.
  static constexpr size_t kEntries = size_t{1} << 16;

  struct Lane {
    uint64_t share = 0;  // its key
    std::string name;
    uint64_t ended = 0;  // the sequence of its last entry; 0: it lives
  };

  // `entries`: a power of two.
  explicit TraceRing(size_t entries = kEntries) : capacity_(entries) {}

  // Lanes count from 1; 0 is the device.
  uint32_t AddLane(uint64_t share, std::string name);
  void NameLane(uint32_t lane, std::string name);
  // Nothing more will be written of it.
  void EndLane(uint32_t lane);
  const Lane* FindLane(uint32_t lane) const;
  size_t lanes() const { return lanes_.size(); }

  void Write(Entry entry) {
    if (!entries_) entries_ = std::make_unique_for_overwrite<Entry[]>(capacity_);
    if (entry.time_ns < last_ns_) entry.time_ns = last_ns_;
    last_ns_ = entry.time_ns;
    entries_[written_ & (capacity_ - 1)] = entry;
    ++written_;
  }

  // Sequences count from 1. The last that was written (0: none), and the oldest that is still
  // there.
  uint64_t last() const { return written_; }
  uint64_t oldest() const { return written_ <= capacity_ ? 1 : written_ - capacity_ + 1; }
  bool has_forgotten() const { return written_ > capacity_; }
  const Entry& At(uint64_t sequence) const { return entries_[(sequence - 1) & (capacity_ - 1)]; }
  // The first of this time or later; last() + 1 if there is none.
  uint64_t FirstSince(int64_t time_ns) const;

 private:
  size_t capacity_;
  std::unique_ptr<Entry[]> entries_;
  uint64_t written_ = 0;
  int64_t last_ns_ = INT64_MIN;
  uint32_t next_lane_ = 1;
  std::map<uint32_t, Lane> lanes_;
};

}  // namespace prorata::agent
