#include "cli/options/users.h"

#include <pwd.h>

#include <algorithm>

namespace prorata::cli {

Result<api::AllowedUsers> ReadUsers(const std::string& text) {
  if (text == "none") return api::AllowedUsers{};
  if (text == "all") return api::AllowedUsers{.all = true};
  std::string ids;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    const std::string user = text.substr(from, comma - from);
    from = comma + 1;
    ids += ids.empty() ? "" : ",";
    if (!user.empty() && user.find_first_not_of("0123456789") == std::string::npos) {
      ids += user;
      continue;
    }
    const passwd* known = user.empty() ? nullptr : ::getpwnam(user.c_str());
    if (known == nullptr && (user == "all" || user == "none")) {
      return Fail("usage", "--allow-users: '" + user + "' stands alone, without other users");
    }
    if (known == nullptr) {
      return Fail("usage", "--allow-users: there is no user '" + user +
                               "' here; write names or ids as alice,1001, or `all` or `none`");
    }
    ids += std::to_string(known->pw_uid);
  }
  auto allowed = api::ParseAllowedUsers(ids);
  if (!allowed) return Fail("usage", "--allow-users: " + allowed.error().message);
  return allowed;
}

}  // namespace prorata::cli
