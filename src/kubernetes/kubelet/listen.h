#pragma once

// A gRPC server on a socket of root's.

#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace prorata::kubernetes {

// Replaces what a killed process left at `path`. Root alone may connect. "socket": what cannot be
// listened on. `service` outlives the server.
Result<std::unique_ptr<grpc::Server>> ListenOnSocket(grpc::Service* service,
                                                     const std::string& path);

}  // namespace prorata::kubernetes
