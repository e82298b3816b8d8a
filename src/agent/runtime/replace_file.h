#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"

namespace prorata::agent {

// Puts a whole new file in the place of `path`, on the disk when it returns: written beside it,
// synced and renamed. Who reads sees the one before or this one; where it fails the one before
// stays, and nothing beside it. `code` is the error's.
Status ReplaceFile(const std::string& path, const std::string& text, mode_t mode, const char* code);

}  // namespace prorata::agent
