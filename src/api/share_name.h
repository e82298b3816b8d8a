#pragma once

// What a share may be called. Pure; thread-safe.

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace prorata::api {

inline constexpr size_t kMaxShareNameLength = 63;

// A name of a share: 1 to 63 of A-Z a-z 0-9 . _ - and '/', neither beginning with '-' nor with a
// part between slashes that is empty, "." or "..".
Status ValidateShareName(std::string_view name);

// The folder of a share below RUNTIME_DIR/shares: its name, with '+' (which no name has) for '/'.
std::string ShareFolder(std::string_view name);

}  // namespace prorata::api
