#include "kubernetes/dra/share_config.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/duration.h"
#include "kubernetes/dra/names.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr uint32_t kConfigPpmOfPercent = Fraction::kOne / 100;

std::unexpected<Error> BadConfig(const std::string& what) {
  return Fail("bad_config", std::string("the parameters for ") + kDriverName + ": " + what);
}

Result<int64_t> IntegerOf(const std::string& field, const json& value, int64_t min, int64_t max) {
  if (value.is_number_integer()) {
    const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX;
    const int64_t number = fits ? value.get<int64_t>() : INT64_MAX;
    if (number >= min && number <= max) return number;
  }
  return BadConfig(field + " is " + value.dump() + ", and must be a whole number from " +
                   std::to_string(min) + " to " + std::to_string(max));
}

Result<std::string> ParameterText(const std::string& field, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  return BadConfig(field + " is " + value.dump() + ", and must be a text in quotes");
}

template <typename Value, typename Parse>
Status SetParsed(const std::string& field, const json& value, Parse parse, Value* target) {
  const auto text = ParameterText(field, value);
  if (!text) return std::unexpected(text.error());
  auto parsed = parse(*text);
  if (!parsed) return BadConfig(field + ": " + parsed.error().message);
  *target = *parsed;
  return {};
}

Status ApplyField(const std::string& field, const json& value, api::ShareSpec* share) {
  if (field == "onFull") return SetParsed(field, value, api::ParseOnFull, &share->on_full);
  if (field == "gang") return SetParsed(field, value, api::ParseGang, &share->gang);
  if (field == "yieldWithin") {
    return SetParsed(field, value, ParseDuration, &share->yield_within_ns);
  }
  if (field == "computeLimit") {
    const auto percent = IntegerOf(field, value, 1, 100);
    if (!percent) return std::unexpected(percent.error());
    share->compute_limit.ppm = static_cast<uint32_t>(*percent) * kConfigPpmOfPercent;
    return {};
  }
  if (field == "weight") {
    const auto weight = IntegerOf(field, value, 1, api::kMaxWeight);
    if (!weight) return std::unexpected(weight.error());
    share->weight = static_cast<uint32_t>(*weight);
    return {};
  }
  if (field == "priority") {
    const auto priority = IntegerOf(field, value, api::kMinPriority, api::kMaxPriority);
    if (!priority) return std::unexpected(priority.error());
    share->priority = static_cast<int32_t>(*priority);
    return {};
  }
  return BadConfig("there is no field '" + field +
                   "'; there are computeLimit, weight, priority, yieldWithin, onFull and gang");
}

}  // namespace

Status ApplyShareConfig(const json& parameters, api::ShareSpec* share) {
  if (!parameters.is_object()) return BadConfig("they are no object");
  const json version = parameters.value("apiVersion", json());
  const json kind = parameters.value("kind", json());
  if (version != kConfigVersion || kind != kConfigKind) {
    return BadConfig("apiVersion and kind are " + version.dump() + " and " + kind.dump() +
                     ", and must be \"" + kConfigVersion + "\" and \"" + kConfigKind + "\"");
  }
  for (const auto& [field, value] : parameters.items()) {
    if (field == "apiVersion" || field == "kind") continue;
    if (auto ok = ApplyField(field, value, share); !ok) return ok;
  }
  return {};
}

}  // namespace prorata::kubernetes
