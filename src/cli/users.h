#pragma once

#include <string>

#include "base/result.h"
#include "protocol/allowed_users.h"

namespace prorata::cli {

// "alice,1001" or "all": names are looked up here, for the agent takes ids. "usage".
Result<protocol::AllowedUsers> ReadUsers(const std::string& text);

}  // namespace prorata::cli
