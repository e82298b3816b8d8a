#pragma once

// Joining this process to its share, in cuInit, and what of it a fork undoes.

namespace prorata::client {

// Has the child after a fork() forget what it does not have: the connection, the threads. Any
// number of times; thread-safe.
void WatchForks();

}  // namespace prorata::client
