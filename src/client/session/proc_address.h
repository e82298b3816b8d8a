#pragma once

// Which of our overrides a versioned lookup means. Pure: the tables come from generated/.

#include <cstdint>

namespace prorata::client {

// The CUDA version of the spec that our overrides were written from.
inline constexpr int kSpecVersion = 13000;

struct VersionRow {
  const char* name;  // the base name that cuGetProcAddress takes
  int version;       // first CUDA version of this form
  int flag;          // 0, or 2: the form for the per-thread default stream
  uint32_t index;    // in the slot table
};

// The row of an overridden function that a lookup of (name, version, flags) means in a driver that
// has those functions for which `has(index)` is true; nullptr: none is overridden. It is the newest
// form not newer than `version` that the driver has; forms for the per-thread default stream win if
// the flags ask for them and there is one.
const VersionRow* FindOverride(const char* name, int version, uint64_t flags,
                               bool (*has)(uint32_t index));

// Whether the spec has a function of this name, governed or not. Cheap, for a program looks up some
// hundreds.
bool IsKnownName(const char* name);

// Whether any form of the name is overridden: cheap, so most lookups end here.
bool IsOverriddenName(const char* name);

}  // namespace prorata::client
