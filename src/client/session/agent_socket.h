#pragma once

namespace prorata::client {

// A new connection to FOLDER/socket, non-blocking and closed on exec; -1: nobody listens there.
int ConnectToAgent(const char* folder);

}  // namespace prorata::client
