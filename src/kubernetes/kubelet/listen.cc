#include "kubernetes/kubelet/listen.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <unistd.h>

namespace prorata::kubernetes {

Result<std::unique_ptr<grpc::Server>> ListenOnSocket(std::initializer_list<grpc::Service*> services,
                                                     const std::string& path) {
  ::unlink(path.c_str());
  const mode_t mask = ::umask(0177);
  int port = -1;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials(), &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  auto server = builder.BuildAndStart();
  ::umask(mask);
  if (server == nullptr || port < 0) {
    return Fail("socket", "cannot listen on '" + path +
                              "'; is its folder there and writable, and the path at most 107 "
                              "characters long?");
  }
  return server;
}

}  // namespace prorata::kubernetes
