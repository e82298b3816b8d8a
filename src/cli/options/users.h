#pragma once

#include <string>

#include "api/allowed_users.h"
#include "base/result.h"

namespace prorata::cli {

// "alice,1001" or "all": names are looked up here, for the agent takes ids. "usage".
Result<api::AllowedUsers> ReadUsers(const std::string& text);

}  // namespace prorata::cli
