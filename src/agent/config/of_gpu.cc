#include "agent/config/of_gpu.h"

#include <algorithm>

namespace prorata::agent {

std::optional<OfGpu> SplitOfGpu(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return OfGpu{"", text};
  if (equals == 0) return std::nullopt;
  return OfGpu{std::string(text.substr(0, equals)), text.substr(equals + 1)};
}

Result<std::vector<OfGpu>> SplitGpuList(std::string_view text, std::string_view example) {
  std::vector<OfGpu> list;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    const std::string_view entry = text.substr(from, comma - from);
    from = comma + 1;
    const std::string shown = "'" + std::string(entry.substr(0, 120)) + "'";
    auto one = SplitOfGpu(entry);
    if (!one) {
      return Fail("bad_gpu_list", "no GPU stands before the '=' of " + shown +
                                      "; write for example " + std::string(example));
    }
    if (std::ranges::any_of(list, [&](const OfGpu& other) { return other.gpu == one->gpu; })) {
      return Fail("bad_gpu_list", shown + " comes second, after another value for " +
                                      (one->gpu.empty() ? "each GPU" : "GPU " + one->gpu) +
                                      "; say each once, for example " + std::string(example));
    }
    list.push_back(std::move(*one));
  }
  return list;
}

}  // namespace prorata::agent
