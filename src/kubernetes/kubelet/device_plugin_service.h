#pragma once

// One resource of the device plugin, as the kubelet calls it.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "kubernetes/kubelet/device_plugin.grpc.pb.h"
#include "kubernetes/plugin/container_shares.h"

namespace prorata::kubernetes {

// Thread-safe: the kubelet calls it from several threads at once.
class DevicePluginService final : public v1beta1::DevicePlugin::Service {
 public:
  // `memory`: its devices are memory units, which name the container's share.
  DevicePluginService(ContainerShares& shares, std::string resource, bool memory)
      : shares_(shares), resource_(std::move(resource)), memory_(memory) {}

  const std::string& resource() const { return resource_; }
  void SetCount(uint32_t count);
  // Ends the streams, for a server that is to be shut down.
  void EndStreams();

  grpc::Status GetDevicePluginOptions(grpc::ServerContext*, const v1beta1::Empty*,
                                      v1beta1::DevicePluginOptions* options) override;
  grpc::Status ListAndWatch(grpc::ServerContext* context, const v1beta1::Empty*,
                            grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) override;
  grpc::Status Allocate(grpc::ServerContext*, const v1beta1::AllocateRequest* request,
                        v1beta1::AllocateResponse* response) override;
  grpc::Status PreStartContainer(grpc::ServerContext*,
                                 const v1beta1::PreStartContainerRequest* request,
                                 v1beta1::PreStartContainerResponse*) override;

 private:
  ContainerShares& shares_;
  const std::string resource_;
  const bool memory_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t count_ = 0;
  uint64_t server_ = 0;  // streams of an earlier server end
};

}  // namespace prorata::kubernetes
