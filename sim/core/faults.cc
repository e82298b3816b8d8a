#include "sim/core/faults.h"

#include <array>
#include <cmath>
#include <map>
#include <sstream>

#include "base/bytes.h"
#include "base/clock.h"

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace prorata::simgpu {

namespace {

struct KindText {
  FaultKind kind;
  std::string_view name;
  std::string_view keys;  // beside kind, device, process and nth_process
};

constexpr std::array kKinds = {
    KindText{FaultKind::kAllocationRefused, "allocation-refused", "nth count above"},
    KindText{FaultKind::kContextError, "context-error", "error launch"},
    KindText{FaultKind::kDeviceLost, "device-lost", "launch after_ms"},
    KindText{FaultKind::kSlow, "slow", "factor launch count"},
    KindText{FaultKind::kStall, "stall", "for_ms launch after_ms"},
    KindText{FaultKind::kInitFails, "init-fails", "error count"},
    KindText{FaultKind::kLateLaunch, "late-launch", "for_ms launch count"},
    KindText{FaultKind::kHang, "hang", "for_ms launch count"},
};

bool Contains(std::string_view keys, std::string_view key) {
  std::istringstream words{std::string(keys)};
  for (std::string word; words >> word;) {
    if (word == key) return true;
  }
  return false;
}

struct Reading {
  const toml::table& table;
  std::string error;  // the first

  void RecordError(std::string_view key, std::string_view expected) {
    if (error.empty()) error = std::string(key) + ": expected " + std::string(expected);
  }
  template <typename Int>
  void Integer(const char* key, Int* out, int64_t low) {
    const toml::node* node = table.get(key);
    if (node == nullptr) return;
    const auto value = node->value_exact<int64_t>();
    if (!value || *value < low || *value > 1'000'000'000) {
      return RecordError(key, "a whole number from " + std::to_string(low));
    }
    *out = static_cast<Int>(*value);
  }
  void Milliseconds(const char* key, int64_t* out_ns) {
    const toml::node* node = table.get(key);
    if (node == nullptr) return;
    const auto value = node->value<double>();
    if (!node->is_number() || !(*value >= 0 && *value <= 1e9)) {
      return RecordError(key, "a time in milliseconds");
    }
    *out_ns = std::llround(*value * kNsPerMs);
  }
  void String(const char* key, std::string* out) {
    const toml::node* node = table.get(key);
    if (node == nullptr) return;
    const auto value = node->value_exact<std::string>();
    if (!value || value->empty() || value->size() > 63) {
      return RecordError(key, "a text of 1 to 63 characters");
    }
    *out = *value;
  }
  void Bytes(const char* key, uint64_t* out) {
    const toml::node* node = table.get(key);
    if (node == nullptr) return;
    const auto text = node->value_exact<std::string>();
    const auto bytes = text ? ParseBytes(*text) : Fail("", "");
    if (!bytes) return RecordError(key, "a size such as \"1GiB\"");
    *out = *bytes;
  }
};

// What must be said for the kind, and what cannot be said together.
void CheckWhole(const FaultConfig& fault, Reading* reading) {
  const bool timed = fault.after_ns >= 0;
  if (fault.kind == FaultKind::kContextError && fault.error.empty()) {
    reading->RecordError("error", "the name of the error, such as \"CUDA_ERROR_ILLEGAL_ADDRESS\"");
  }
  if (fault.kind == FaultKind::kSlow && reading->table.get("factor") == nullptr) {
    reading->RecordError("factor", "how many times as long");
  }
  if (fault.kind == FaultKind::kStall && fault.for_ns == 0) {
    reading->RecordError("for_ms", "how long the device stands still");
  }
  const bool late = fault.kind == FaultKind::kLateLaunch || fault.kind == FaultKind::kHang;
  if (late && fault.for_ns == 0) {
    reading->RecordError("for_ms", "how long the launch takes");
  }
  if (timed && (!fault.process.empty() || fault.nth_process != 0 ||
                reading->table.get("launch") != nullptr)) {
    reading->RecordError("after_ms",
                         "no process, nth_process or launch beside it: it is the device's");
  }
  if (timed && fault.device < 0) reading->RecordError("device", "which device, with after_ms");
}

}  // namespace

Result<FaultConfig> ReadFault(const void* untyped, const std::string& where) {
  const toml::table& table = *static_cast<const toml::table*>(untyped);
  Reading reading{table, ""};
  FaultConfig fault;
  const auto name = table["kind"].value_exact<std::string>();
  const KindText* kind = nullptr;
  std::string known;
  for (const KindText& entry : kKinds) {
    if (name && *name == entry.name) kind = &entry;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  if (kind == nullptr) {
    reading.RecordError("kind", "one of " + known);
    return Fail("sim_config", where + reading.error);
  }
  fault.kind = kind->kind;
  for (const auto& [key, node] : table) {
    if (!Contains("kind device process nth_process", key.str()) &&
        !Contains(kind->keys, key.str())) {
      return Fail("sim_config", where + std::string(key.str()) + ": unknown setting of \"" +
                                    std::string(kind->name) + "\"; known here: kind device " +
                                    "process nth_process " + std::string(kind->keys));
    }
  }
  // A device stays slow, and a size too large, unless it is said how often.
  const bool always = fault.kind == FaultKind::kSlow || fault.kind == FaultKind::kInitFails ||
                      table.get("above") != nullptr;
  if (always) fault.count = UINT64_MAX;
  reading.Integer("device", &fault.device, 0);
  reading.String("process", &fault.process);
  reading.Integer("nth_process", &fault.nth_process, 1);
  reading.Integer("nth", &fault.nth, 1);
  reading.Integer("launch", &fault.nth, 1);
  reading.Integer("count", &fault.count, 1);
  reading.Bytes("above", &fault.above_bytes);
  reading.Milliseconds("after_ms", &fault.after_ns);
  reading.Milliseconds("for_ms", &fault.for_ns);
  reading.String("error", &fault.error);
  if (const toml::node* node = table.get("factor")) {
    const auto value = node->value<double>();
    if (!node->is_number() || !(*value >= 0.01 && *value <= 10'000)) {
      reading.RecordError("factor", "a number from 0.01 to 10000");
    } else {
      fault.factor = *value;
    }
  }
  CheckWhole(fault, &reading);
  if (!reading.error.empty()) return Fail("sim_config", where + reading.error);
  return fault;
}

std::string CanonicalText(const std::vector<FaultConfig>& faults) {
  std::ostringstream out;
  out.precision(17);
  for (const FaultConfig& fault : faults) {
    out << "[[faults]]\nkind = " << static_cast<int>(fault.kind) << "\ndevice = " << fault.device
        << "\nprocess = " << fault.process << "\nnth_process = " << fault.nth_process
        << "\nnth = " << fault.nth << "\ncount = " << fault.count
        << "\nabove = " << fault.above_bytes << "\nafter_ns = " << fault.after_ns
        << "\nfor_ns = " << fault.for_ns << "\nfactor = " << fault.factor
        << "\nerror = " << fault.error << "\n";
  }
  return out.str();
}

}  // namespace prorata::simgpu
