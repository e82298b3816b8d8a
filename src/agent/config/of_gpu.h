#pragma once

// What an option of the agent says of every GPU or of one: "VALUE", or "GPU=VALUE", where GPU is an
// index or a UUID. Pure.

#include <optional>
#include <string>
#include <string_view>

namespace prorata::agent {

struct OfGpu {
  std::string gpu;         // empty: every GPU
  std::string_view value;  // in the text that was given
};

// Empty: no GPU stands before the '='.
inline std::optional<OfGpu> SplitOfGpu(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return OfGpu{"", text};
  if (equals == 0) return std::nullopt;
  return OfGpu{std::string(text.substr(0, equals)), text.substr(equals + 1)};
}

}  // namespace prorata::agent
