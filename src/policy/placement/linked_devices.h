#pragma once

// Which devices a share gets that asks for some and names none.
//
// Of the sets of devices on which it fits, the best-linked: the one whose weakest link is best,
// since a collective runs at the pace of its slowest pair; of those, the one whose links are best
// together; of those, the one with the devices that have most memory left, compared from the most
// on, so that shares spread. Equal devices are taken by their index.
//
// A pure function of its arguments: no clock, no state. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace prorata::policy {

struct PlacementDevice {
  bool fits = false;  // the share can be had here
  uint64_t memory_left_bytes = 0;
};

// The devices chosen, by index, in ascending order; nothing if fewer than `count` fit or `count` is
// 0. `ranks` has a row for each device with a rank for each other one: the higher, the better the
// link between the two. It is symmetric; what stands on its diagonal is not read.
//
// Exact for up to 20 devices that fit. For more the search ends after so many steps as those can
// need, with the best it found.
std::optional<std::vector<size_t>> ChooseLinked(std::span<const PlacementDevice> devices,
                                                std::span<const uint32_t> ranks, size_t count);

}  // namespace prorata::policy
