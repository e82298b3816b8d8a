#include "api/allowed_users.h"

#include <algorithm>
#include <charconv>

namespace prorata::api {

bool AllowedUsers::Admits(uint32_t user) const {
  return all || std::binary_search(users.begin(), users.end(), user);
}

Result<AllowedUsers> ParseAllowedUsers(std::string_view text) {
  AllowedUsers allowed;
  if (text.empty()) return allowed;
  if (text == "all") return AllowedUsers{.all = true};
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    const std::string_view entry = text.substr(from, comma - from);
    from = comma + 1;
    uint32_t user = 0;
    const char* const end = entry.data() + entry.size();
    const auto [at, error] = std::from_chars(end - entry.size(), end, user);
    // The last number stands for "no user" in the kernel's calls.
    if (entry.empty() || error != std::errc{} || at != end || user == ~uint32_t{0}) {
      std::string shown(entry.substr(0, 80));
      for (char& c : shown) {
        if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
      }
      return Fail("bad_users", "'" + shown +
                                   "' is no user id; write `all`, or ids as 1000,1001 (`id -u "
                                   "NAME` prints one)");
    }
    allowed.users.push_back(user);
  }
  std::sort(allowed.users.begin(), allowed.users.end());
  allowed.users.erase(std::unique(allowed.users.begin(), allowed.users.end()), allowed.users.end());
  if (allowed.users.size() > kMaxAllowedUsers) {
    return Fail("bad_users", "they are " + std::to_string(allowed.users.size()) +
                                 " users, more than the " + std::to_string(kMaxAllowedUsers) +
                                 " that a share can name; write `all`");
  }
  return allowed;
}

std::string FormatAllowedUsers(const AllowedUsers& allowed) {
  if (allowed.all) return "all";
  std::string text;
  for (const uint32_t user : allowed.users) {
    text += (text.empty() ? "" : ",") + std::to_string(user);
  }
  return text;
}

}  // namespace prorata::api
