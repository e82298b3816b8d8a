#pragma once

// What becomes of an allocation that a share's limit allows and its device cannot give now, because
// more was promised than there is: it fails, or it waits, for ever or for so long.
//
// As text, on the command line, in JSON and in the agent's state: "fail", "wait", "wait=30s".

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "wire/messages.h"

namespace prorata::api {

struct OnFull {
  uint32_t wait_ms = wire::kNoWait;  // the most that one call waits

  bool waits() const { return wait_ms != wire::kNoWait; }
  bool operator==(const OnFull&) const = default;
};

// "bad_on_full", for a person.
Result<OnFull> ParseOnFull(std::string_view text);
std::string FormatOnFull(OnFull on_full);

}  // namespace prorata::api
