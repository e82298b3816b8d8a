#pragma once

// `prorata rm`: the end of a share, as `docker rm` ends a container.

#include <string>

#include "api/control_connection.h"
#include "base/result.h"

namespace prorata::cli {

// Ends a share. One with programs or a container is refused ("share_in_use"), unless `force`: then
// nobody may join it any more, its programs are killed, and it is gone when this answers. A program
// that may not be killed goes on, and the share with it ("not_killed"). Else the agent's errors.
//
// A program that joins between the look and the end is not refused: the share ends with it, and
// what this says then is on standard error.
Status EndShare(ControlConnection* connection, const std::string& name, bool force);

}  // namespace prorata::cli
