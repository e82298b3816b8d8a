#pragma once

// What an option says of every GPU or of single ones: "VALUE", "GPU=VALUE", or several of them,
// separated by commas ("4GiB,2=6GiB"). GPU is an index or a UUID. Pure; thread-safe.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace prorata::agent {

struct OfGpu {
  std::string gpu;         // empty: every GPU
  std::string_view value;  // in the text that was given
};

// One of them. Empty: no GPU stands before the '='.
std::optional<OfGpu> SplitOfGpu(std::string_view text);

// All of a list, in its order. "bad_gpu_list": an entry names no GPU before its '=', or two are of
// the same GPU or of every GPU; `example` is what a right list looks like.
Result<std::vector<OfGpu>> SplitGpuList(std::string_view text, std::string_view example);

}  // namespace prorata::agent
