#pragma once

// The helper thread: reads the member socket, joins again when the agent restarts, watches leases
// and fences, settles pools. One per process, started by the first request or context, with all
// signals blocked and a small stack. It never ends: it sleeps in poll() when there is nothing to
// do.

namespace prorata::client {

// Starts it if it does not run. False: no thread can be had; requests then fail at once.
bool EnsureHelper();

// In the child after a fork there is no helper.
void ForgetHelper();

}  // namespace prorata::client
