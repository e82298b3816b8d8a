#pragma once

// What the annotations of a pod ask of the shares of its claims. Pure; thread-safe.
//
//   prorata.dev/memory: 12Gi            bytes on each GPU, rounded up to 256 MiB: limit and request
//   prorata.dev/compute: "50"           hundredths of a GPU's time, guaranteed
//   prorata.dev/compute-limit: "80"     hundredths: the most it may use
//   prorata.dev/weight: "200"
//   prorata.dev/priority: "5"
//   prorata.dev/yield-within: 2ms
//   prorata.dev/on-full: wait=30s
//   prorata.dev/gang: always
//
// Of a pod with several claims for prorata the annotation names the entry of `spec.resourceClaims`
// that it means: prorata.dev/memory.ENTRY.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "api/control.h"
#include "base/result.h"

namespace prorata::kubernetes {

inline constexpr std::string_view kAnnotationPrefix = "prorata.dev/";

// What is absent stays as the claim has it.
struct ShareWish {
  std::optional<uint64_t> memory_bytes = {};
  std::optional<uint32_t> compute_percent = {};
  std::optional<uint32_t> compute_limit_percent = {};
  std::optional<uint32_t> weight = {};
  std::optional<int32_t> priority = {};
  std::optional<int64_t> yield_within_ns = {};
  std::optional<api::OnFull> on_full = {};
  std::optional<api::Gang> gang = {};

  bool Empty() const { return *this == ShareWish{}; }
  bool operator==(const ShareWish&) const = default;
};

using Annotations = std::map<std::string, std::string>;

// Reads one field ("memory", "compute-limit") into `wish`. False: there is no such field.
// "bad_annotation": a value that is none, with what one looks like.
Result<bool> ReadWishField(std::string_view field, const std::string& value, ShareWish* wish);

// Whole hundredths of a GPU, from `min` to 100. The message does not name what was read.
Result<uint32_t> ParseGpuPercent(const std::string& text, uint32_t min);

// What entries are, in messages.
struct EntryKind {
  const char* one;
  const char* several;
};
inline constexpr EntryKind kClaimEntries = {"claim for prorata", "claims for prorata"};
inline constexpr EntryKind kContainerEntries = {"container with a part of a GPU",
                                                "containers with parts of GPUs"};

// The wishes by entry; `entries` are those of the pod's claims for prorata, or its containers.
// Entries without an annotation are not there. "bad_annotation": a wrong value, an entry that is
// not there, or an annotation that may mean any of several. Annotations with other names are not
// prorata's to judge.
Result<std::map<std::string, ShareWish>> ReadWishes(const Annotations& annotations,
                                                    std::span<const std::string> entries,
                                                    EntryKind kind = kClaimEntries);

// Adds the fields of `other`, which another pod asks of the same claim. "wishes_differ", with the
// name of a field of which they ask for different values.
Status MergeWish(const ShareWish& other, ShareWish* wish);

}  // namespace prorata::kubernetes
