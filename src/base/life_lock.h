#pragma once

// A file that is locked for as long as a process lives. Thread-safe.
//
// The lock is the open file description's (fcntl(2), F_OFD_SETLK). flock(2) would do, too, but
// nobody can ask whether that is held without holding it for a moment, and who takes it just then
// would think that another lives.

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace prorata {

// Locks it, making it where it is missing, until the descriptor is closed. Errors: "locked" (by
// another), "lock" (it cannot be opened or locked, which includes that it is a link).
Result<UniqueFd> TakeLifeLock(const std::string& path);

// Whether somebody holds it; false where that cannot be seen.
bool IsLifeLocked(const std::string& path);

}  // namespace prorata
