#include "kubernetes/kubelet/device_plugin_service.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <vector>

namespace prorata::kubernetes {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// The kubelet waits 30 s for PreStartContainer, and is better told why than left waiting.
constexpr seconds kPreStartWithin{25};
// So late a stream sees that the kubelet at its other end is gone.
constexpr seconds kCancelledSeenWithin{1};

grpc::Status Refused(const Error& error) {
  return {grpc::StatusCode::FAILED_PRECONDITION, error.message};
}

}  // namespace

void DevicePluginService::SetCount(uint32_t count) {
  {
    const std::lock_guard lock(mutex_);
    count_ = count;
  }
  changed_.notify_all();
}

void DevicePluginService::EndStreams() {
  {
    const std::lock_guard lock(mutex_);
    ++server_;
  }
  changed_.notify_all();
}

grpc::Status DevicePluginService::GetDevicePluginOptions(grpc::ServerContext*,
                                                         const v1beta1::Empty*,
                                                         v1beta1::DevicePluginOptions* options) {
  options->set_pre_start_required(true);
  return grpc::Status::OK;
}

grpc::Status DevicePluginService::ListAndWatch(
    grpc::ServerContext* context, const v1beta1::Empty*,
    grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) {
  std::unique_lock lock(mutex_);
  const uint64_t server = server_;
  std::optional<uint32_t> sent;
  while (server == server_ && !context->IsCancelled()) {
    if (sent == count_) {
      changed_.wait_for(lock, kCancelledSeenWithin);
      continue;
    }
    sent = count_;
    lock.unlock();
    v1beta1::ListAndWatchResponse response;
    for (uint32_t id = 0; id < *sent; ++id) {
      v1beta1::Device* device = response.add_devices();
      device->set_id(std::to_string(id));
      device->set_health("Healthy");
    }
    if (!writer->Write(response)) return grpc::Status::OK;
    lock.lock();
  }
  return grpc::Status::OK;
}

grpc::Status DevicePluginService::Allocate(grpc::ServerContext*,
                                           const v1beta1::AllocateRequest* request,
                                           v1beta1::AllocateResponse* response) {
  for (const auto& container : request->container_requests()) {
    auto* answer = response->add_container_responses();
    // Should the runtime ignore CDI devices, NVIDIA's own hook still adds no GPU.
    (*answer->mutable_envs())["NVIDIA_VISIBLE_DEVICES"] = "void";
    if (!memory_) continue;
    const std::vector<std::string> ids(container.devices_ids().begin(),
                                       container.devices_ids().end());
    const auto device = ContainerShares::CdiDeviceOf(ids);
    if (!device) return Refused(device.error());
    answer->add_cdi_devices()->set_name(*device);
  }
  return grpc::Status::OK;
}

grpc::Status DevicePluginService::PreStartContainer(
    grpc::ServerContext*, const v1beta1::PreStartContainerRequest* request,
    v1beta1::PreStartContainerResponse*) {
  const std::vector<std::string> ids(request->devices_ids().begin(), request->devices_ids().end());
  const auto container = shares_.Start(resource_, ids, steady_clock::now() + kPreStartWithin);
  if (!container) {
    spdlog::warn("a container with {} devices of {} does not start: {}", ids.size(), resource_,
                 container.error().message);
    return Refused(container.error());
  }
  if (memory_) spdlog::info("container {} has its share", *container);
  return grpc::Status::OK;
}

}  // namespace prorata::kubernetes
