#include "client/session/proc_address.h"

#include <cstddef>
#include <cstring>
#include <string_view>

#include "generated/cuda_abi.h"

namespace prorata::client {
namespace {

static_assert(kSpecVersion == CUDA_VERSION);

enum Index : uint32_t {
#define PRORATA_DRIVER_SYMBOL(symbol, index, role) kDriverIndex_##symbol = index,
#include "generated/driver_symbols.inc"
#undef PRORATA_DRIVER_SYMBOL
};

constexpr uint32_t kOverrides[] = {
#define PRORATA_DRIVER_OVERRIDE(symbol, index) index,
#define PRORATA_NVML_OVERRIDE(symbol, index)
#include "generated/client_overrides.inc"
#undef PRORATA_DRIVER_OVERRIDE
#undef PRORATA_NVML_OVERRIDE
};

consteval bool IsOverride(uint32_t index) {
  for (const uint32_t overridden : kOverrides) {
    if (overridden == index) return true;
  }
  return false;
}

consteval size_t CountRows() {
  size_t count = 0;
#define PRORATA_DRIVER_VERSION(name, version, flag, symbol) \
  count += IsOverride(kDriverIndex_##symbol);
#include "generated/driver_versions.inc"
#undef PRORATA_DRIVER_VERSION
  return count;
}

struct Rows {
  VersionRow row[CountRows()];
};

consteval Rows MakeRows() {
  Rows rows = {};
  size_t at = 0;
#define PRORATA_DRIVER_VERSION(name, version, flag, symbol) \
  if (IsOverride(kDriverIndex_##symbol))                    \
    rows.row[at++] = {name, version, flag, kDriverIndex_##symbol};
#include "generated/driver_versions.inc"
#undef PRORATA_DRIVER_VERSION
  return rows;
}

constexpr Rows kRows = MakeRows();

// Base names, of all functions, in their order.
constexpr const char* kNames[] = {
#define PRORATA_DRIVER_VERSION(name, version, flag, symbol) name,
#include "generated/driver_versions.inc"
#undef PRORATA_DRIVER_VERSION
};
constexpr size_t kNameCount = sizeof kNames / sizeof kNames[0];

consteval bool NamesAreSorted() {
  for (size_t i = 1; i < kNameCount; ++i) {
    if (std::string_view(kNames[i]) < kNames[i - 1]) return false;
  }
  return true;
}
static_assert(NamesAreSorted());

constexpr int kPerThreadFlag = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

}  // namespace

bool IsKnownName(const char* name) {
  size_t low = 0, high = kNameCount;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    const int order = std::strcmp(kNames[middle], name);
    if (order == 0) return true;
    (order < 0 ? low : high) = order < 0 ? middle + 1 : middle;
  }
  return false;
}

bool IsOverriddenName(const char* name) {
  for (const VersionRow& row : kRows.row) {
    if (std::strcmp(row.name, name) == 0) return true;
  }
  return false;
}

const VersionRow* FindOverride(const char* name, int version, uint64_t flags,
                               bool (*has)(uint32_t index)) {
  const bool per_thread = (flags & kPerThreadFlag) != 0;
  const VersionRow* best = nullptr;
  for (const VersionRow& row : kRows.row) {
    if (row.version > version || (row.flag != 0 && !per_thread) ||
        std::strcmp(row.name, name) != 0 || !has(row.index)) {
      continue;
    }
    if (best == nullptr || row.flag > best->flag ||
        (row.flag == best->flag && row.version > best->version)) {
      best = &row;
    }
  }
  return best;
}

}  // namespace prorata::client
