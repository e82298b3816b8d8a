#pragma once

// Whether a share over several GPUs runs on all of them at the same time (policy/gangs.h): always,
// never, or for a while once its kernels were seen to wait for each other.
//
// As text, on the command line, in JSON and in the agent's state: "auto", "always", "never". A
// share of one GPU has no use for it; "always" is refused for it, as a misunderstanding.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace prorata::api {

enum class Gang : uint8_t { kAuto, kAlways, kNever };

// "bad_gang", for a person.
Result<Gang> ParseGang(std::string_view text);
std::string FormatGang(Gang gang);

}  // namespace prorata::api
