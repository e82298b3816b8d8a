#pragma once

// A gRPC server on a socket of root's.

#include <grpcpp/server.h>

#include <initializer_list>
#include <memory>
#include <string>

#include "base/result.h"

namespace prorata::kubernetes {

// Replaces what a killed process left at `path`. Root alone may connect. "socket": what cannot be
// listened on. The services outlive the server.
Result<std::unique_ptr<grpc::Server>> ListenOnSocket(std::initializer_list<grpc::Service*> services,
                                                     const std::string& path);

}  // namespace prorata::kubernetes
