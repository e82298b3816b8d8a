#pragma once

// Which users, beside its owner, may run programs on a share: "" (nobody), "all", or user ids as
// "1000,1001". They join it; changing and ending it stays the owner's. A text has numbers and no
// names: looking a name up may block, so that is left to whoever asks the agent.
//
// No I/O; thread-safe.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace prorata::api {

inline constexpr size_t kMaxAllowedUsers = 64;

struct AllowedUsers {
  bool all = false;
  std::vector<uint32_t> users = {};  // in order, each once

  bool Admits(uint32_t user) const;
  bool Nobody() const { return !all && users.empty(); }
  bool operator==(const AllowedUsers&) const = default;
};

// "bad_users" with what is wrong.
Result<AllowedUsers> ParseAllowedUsers(std::string_view text);
std::string FormatAllowedUsers(const AllowedUsers& allowed);

}  // namespace prorata::api
