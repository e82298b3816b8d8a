#include "kubernetes/admission/pod_fields.h"

#include <charconv>
#include <cmath>

#include "api/control.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

std::optional<std::string> TextOfValue(const json& resources, const char* kind,
                                       const std::string& name) {
  const auto list = resources.find(kind);
  if (list == resources.end() || !list->is_object()) return std::nullopt;
  const auto found = list->find(name);
  if (found == list->end()) return std::nullopt;
  return found->is_string() ? found->get<std::string>() : found->dump();
}

}  // namespace

std::unexpected<Error> BadAsk(const std::string& what) { return Fail("bad_ask", what); }

Annotations TextsOf(const json& pod, const char* field) {
  Annotations texts;
  const json metadata = pod.value("metadata", json::object());
  const auto found = metadata.find(field);
  if (found == metadata.end() || !found->is_object()) return texts;
  for (const auto& [key, value] : found->items()) {
    if (value.is_string()) texts[key] = value.get<std::string>();
  }
  return texts;
}

std::optional<std::string> ResourceOf(const json& container, const std::string& name) {
  const json resources = container.value("resources", json::object());
  auto value = TextOfValue(resources, "limits", name);
  return value ? value : TextOfValue(resources, "requests", name);
}

Result<std::optional<uint64_t>> CountOf(const json& container, const std::string& name,
                                        uint64_t min, uint64_t max, const std::string& unit) {
  const auto text = ResourceOf(container, name);
  if (!text) return std::nullopt;
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), count);
  // "3k" is a quantity, too, and 3000.
  if (error == std::errc() && *end == 'k' && count <= max) {
    if (end + 1 == text->data() + text->size() && count * 1000 <= max) return count * 1000;
  }
  if (error == std::errc() && end == text->data() + text->size() && count >= min && count <= max) {
    return count;
  }
  return BadAsk("container '" + NameOf(container) + "' asks for " + *text + " of " + name +
                ", which must be a whole number from " + std::to_string(min) + " to " +
                std::to_string(max) + " (" + unit + ")");
}

Result<uint32_t> PercentOfDecimal(const std::string& what, const std::string& text) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const bool number = error == std::errc() && end == text.data() + text.size();
  if (!number || !(value >= 0) || value > api::kMaxGpusOfShare) {
    return BadAsk(what + " is '" + text + "', and must be a part of a GPU such as 0.5, or a " +
                  "whole number of GPUs up to " + std::to_string(api::kMaxGpusOfShare));
  }
  if (value > 1 && value != std::floor(value)) {
    return BadAsk(what + " is '" + text + "', and above one GPU it must be a whole number of GPUs");
  }
  // So that 0.29, which is a little above, is 29.
  return static_cast<uint32_t>(std::ceil(value * 100 - 1e-6));
}

std::string CelText(const std::string& text) { return json(text).dump(); }

std::string NameOf(const json& container) { return container.value("name", std::string()); }

}  // namespace prorata::kubernetes
