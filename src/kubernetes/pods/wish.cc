#include "kubernetes/pods/wish.h"

#include <algorithm>
#include <charconv>

#include "base/bytes.h"
#include "base/duration.h"
#include "kubernetes/api/quantity.h"
#include "kubernetes/dra/resource_slice.h"

namespace prorata::kubernetes {
namespace {

std::unexpected<Error> BadAnnotation(const std::string& what) {
  return Fail("bad_annotation", what);
}

Result<int64_t> ParseWhole(const std::string& text, int64_t min, int64_t max) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < min || number > max) {
    return BadAnnotation("must be a whole number from " + std::to_string(min) + " to " +
                         std::to_string(max));
  }
  return number;
}

Result<uint64_t> ParseMemory(const std::string& text) {
  const auto bytes = ParseQuantity(text);
  if (!bytes || *bytes == 0) {
    return BadAnnotation("must be an amount of memory above 0 such as 8Gi or 512Mi");
  }
  if (*bytes > UINT64_MAX - kMemoryStepBytes) return BadAnnotation("is more than any GPU has");
  return (*bytes + kMemoryStepBytes - 1) / kMemoryStepBytes * kMemoryStepBytes;
}

template <typename Value, typename Parsed>
Status Store(Result<Parsed> parsed, std::optional<Value>* target) {
  if (!parsed) return std::unexpected(parsed.error());
  *target = static_cast<Value>(*parsed);
  return {};
}

// Nothing: there is no such field.
std::optional<Status> StoreField(std::string_view field, const std::string& value,
                                 ShareWish* wish) {
  if (field == "memory") return Store(ParseMemory(value), &wish->memory_bytes);
  if (field == "compute") return Store(ParseGpuPercent(value, 0), &wish->compute_percent);
  if (field == "compute-limit") {
    return Store(ParseGpuPercent(value, 1), &wish->compute_limit_percent);
  }
  if (field == "weight") return Store(ParseWhole(value, 1, api::kMaxWeight), &wish->weight);
  if (field == "priority") {
    return Store(ParseWhole(value, api::kMinPriority, api::kMaxPriority), &wish->priority);
  }
  if (field == "yield-within") return Store(ParseDuration(value), &wish->yield_within_ns);
  if (field == "on-full") return Store(api::ParseOnFull(value), &wish->on_full);
  if (field == "gang") return Store(api::ParseGang(value), &wish->gang);
  return std::nullopt;
}

std::string Join(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Which entry "FIELD.ENTRY" means.
Result<std::string> EntryOf(const std::string& key, std::string_view field, std::string_view entry,
                            std::span<const std::string> entries, EntryKind kind) {
  if (!entry.empty()) {
    if (std::find(entries.begin(), entries.end(), entry) != entries.end()) {
      return std::string(entry);
    }
    return BadAnnotation("annotation " + key + ": the pod has no " + kind.one + " '" +
                         std::string(entry) + "'; it has " + Join(entries));
  }
  if (entries.size() == 1) return entries.front();
  return BadAnnotation("annotation " + key + ": the pod has several " + kind.several + " (" +
                       Join(entries) + "); say which one is meant, as in " +
                       std::string(kAnnotationPrefix) + std::string(field) + "." + entries.front());
}

template <typename Value>
Status MergeField(const char* field, const std::optional<Value>& other,
                  std::optional<Value>* value) {
  if (!other) return {};
  if (*value && **value != *other) {
    return Fail("wishes_differ", "pods of one claim ask for different values of " +
                                     std::string(kAnnotationPrefix) + field +
                                     "; let them say the same, or only one of them say it");
  }
  *value = other;
  return {};
}

}  // namespace

Result<uint32_t> ParseGpuPercent(const std::string& text, uint32_t min) {
  std::string digits = text;
  if (digits.ends_with('%')) digits.pop_back();
  const auto percent = ParseWhole(digits, min, 100);
  if (percent) return static_cast<uint32_t>(*percent);
  return BadAnnotation("must be whole hundredths of a GPU, from " + std::to_string(min) +
                       " to 100");
}

Result<bool> ReadWishField(std::string_view field, const std::string& value, ShareWish* wish) {
  const auto stored = StoreField(field, value, wish);
  if (!stored) return false;
  if (*stored) return true;
  const std::string& why = stored->error().message;
  return BadAnnotation("annotation " + std::string(kAnnotationPrefix) + std::string(field) +
                       " is '" + value + "'" +
                       (stored->error().code == "bad_annotation" ? ", and " : ": ") + why);
}

Result<std::map<std::string, ShareWish>> ReadWishes(const Annotations& annotations,
                                                    std::span<const std::string> entries,
                                                    EntryKind kind) {
  std::map<std::string, ShareWish> wishes;
  if (entries.empty()) return wishes;
  for (const auto& [key, value] : annotations) {
    if (!key.starts_with(kAnnotationPrefix)) continue;
    const std::string_view name = std::string_view(key).substr(kAnnotationPrefix.size());
    const std::string_view field = name.substr(0, name.find('.'));
    const std::string_view entry = name.substr(std::min(name.size(), field.size() + 1));
    ShareWish one;
    const auto known = ReadWishField(field, value, &one);
    if (!known) return std::unexpected(known.error());
    if (!*known) continue;
    const auto which = EntryOf(key, field, entry, entries, kind);
    if (!which) return std::unexpected(which.error());
    if (!MergeWish(one, &wishes[*which])) {
      return BadAnnotation("annotations " + std::string(kAnnotationPrefix) + std::string(field) +
                           " and " + std::string(kAnnotationPrefix) + std::string(field) + "." +
                           *which + " ask for different things; remove one of them");
    }
  }
  return wishes;
}

Status MergeWish(const ShareWish& other, ShareWish* wish) {
  ShareWish merged = *wish;
  Status ok = MergeField("memory", other.memory_bytes, &merged.memory_bytes);
  if (ok) ok = MergeField("compute", other.compute_percent, &merged.compute_percent);
  if (ok) {
    ok = MergeField("compute-limit", other.compute_limit_percent, &merged.compute_limit_percent);
  }
  if (ok) ok = MergeField("weight", other.weight, &merged.weight);
  if (ok) ok = MergeField("priority", other.priority, &merged.priority);
  if (ok) ok = MergeField("yield-within", other.yield_within_ns, &merged.yield_within_ns);
  if (ok) ok = MergeField("on-full", other.on_full, &merged.on_full);
  if (ok) ok = MergeField("gang", other.gang, &merged.gang);
  if (ok) *wish = merged;
  return ok;
}

}  // namespace prorata::kubernetes
