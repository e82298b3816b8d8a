#include "kubernetes/kubelet/dra_server.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <mutex>

#include "kubernetes/dra/names.h"
#include "kubernetes/kubelet/dra.grpc.pb.h"
#include "kubernetes/kubelet/dra_health.grpc.pb.h"
#include "kubernetes/kubelet/listen.h"
#include "kubernetes/kubelet/plugin_registration.grpc.pb.h"

namespace prorata::kubernetes {
namespace {

namespace dra = k8s::io::kubelet::pkg::apis::dra::v1;
using std::chrono::seconds;
using std::chrono::steady_clock;

// The kubelet waits 45 s for either answer, and a reason is better than no answer.
constexpr seconds kAnswerWithin{35};
constexpr seconds kGrace{5};
// A kubelet that hears nothing for 30 s says that it does not know.
constexpr seconds kHealthEvery{5};

ClaimReference ReferenceOf(const dra::Claim& claim) {
  return {claim.namespace_(), claim.name(), claim.uid()};
}

class Registration final : public pluginregistration::Registration::Service {
 public:
  Registration(DraServerOptions options, std::string endpoint)
      : options_(std::move(options)), endpoint_(std::move(endpoint)) {}

  grpc::Status GetInfo(grpc::ServerContext*, const pluginregistration::InfoRequest*,
                       pluginregistration::PluginInfo* info) override {
    info->set_type("DRAPlugin");
    info->set_name(kDriverName);
    info->set_endpoint(endpoint_);
    info->add_supported_versions("v1.DRAPlugin");
    return grpc::Status::OK;
  }

  grpc::Status NotifyRegistrationStatus(grpc::ServerContext*,
                                        const pluginregistration::RegistrationStatus* status,
                                        pluginregistration::RegistrationStatusResponse*) override {
    if (status->plugin_registered()) {
      options_.registered();
    } else {
      options_.refused(status->error());
    }
    return grpc::Status::OK;
  }

 private:
  const DraServerOptions options_;
  const std::string endpoint_;
};

class Driver final : public dra::DRAPlugin::Service {
 public:
  explicit Driver(Claims& claims) : claims_(claims) {}

  grpc::Status NodePrepareResources(grpc::ServerContext*,
                                    const dra::NodePrepareResourcesRequest* request,
                                    dra::NodePrepareResourcesResponse* response) override {
    const auto deadline = steady_clock::now() + kAnswerWithin;
    for (const dra::Claim& claim : request->claims()) {
      auto& answer = (*response->mutable_claims())[claim.uid()];
      const ClaimReference reference = ReferenceOf(claim);
      const auto prepared = claims_.Prepare(reference, deadline);
      if (!prepared) {
        spdlog::warn("claim {} is not prepared: {}", Describe(reference), prepared.error().message);
        answer.set_error(prepared.error().message);
        continue;
      }
      for (const PreparedDevice& device : *prepared) Add(device, answer.add_devices());
      spdlog::info("claim {} ({}) is prepared", Describe(reference), claim.uid());
    }
    return grpc::Status::OK;
  }

  grpc::Status NodeUnprepareResources(grpc::ServerContext*,
                                      const dra::NodeUnprepareResourcesRequest* request,
                                      dra::NodeUnprepareResourcesResponse* response) override {
    const auto deadline = steady_clock::now() + kAnswerWithin;
    for (const dra::Claim& claim : request->claims()) {
      auto& answer = (*response->mutable_claims())[claim.uid()];
      const ClaimReference reference = ReferenceOf(claim);
      if (auto ok = claims_.Unprepare(reference, deadline); !ok) {
        spdlog::warn("claim {} is not released: {}", Describe(reference), ok.error().message);
        answer.set_error(ok.error().message);
      } else {
        spdlog::info("claim {} ({}) is released", Describe(reference), claim.uid());
      }
    }
    return grpc::Status::OK;
  }

 private:
  static void Add(const PreparedDevice& prepared, dra::Device* device) {
    device->add_request_names(prepared.device.request);
    device->set_pool_name(prepared.device.pool);
    device->set_device_name(prepared.device.device);
    for (const std::string& name : prepared.cdi_devices) device->add_cdi_device_ids(name);
    if (prepared.device.share_id) device->set_share_id(*prepared.device.share_id);
  }

  Claims& claims_;
};

// The kubelet writes it into the status of pods, where ResourceHealthStatus is on.
class Health final : public v1alpha1::DRAResourceHealth::Service {
 public:
  explicit Health(const DraServerOptions& options) : health_(options.health) {}

  grpc::Status NodeWatchResources(
      grpc::ServerContext* context, const v1alpha1::NodeWatchResourcesRequest*,
      grpc::ServerWriter<v1alpha1::NodeWatchResourcesResponse>* writer) override {
    std::unique_lock lock(mutex_);
    while (!ending_ && !context->IsCancelled()) {
      lock.unlock();
      const auto all = health_();
      if (all && !writer->Write(Answer(*all))) return grpc::Status::OK;
      lock.lock();
      end_.wait_for(lock, kHealthEvery, [this] { return ending_; });
    }
    return grpc::Status::OK;
  }

  void End() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    end_.notify_all();
  }

 private:
  static v1alpha1::NodeWatchResourcesResponse Answer(const std::vector<DeviceHealth>& all) {
    v1alpha1::NodeWatchResourcesResponse answer;
    for (const DeviceHealth& one : all) {
      auto* device = answer.add_devices();
      device->mutable_device()->set_pool_name(one.pool);
      device->mutable_device()->set_device_name(one.device);
      device->set_health(one.trouble.empty() ? v1alpha1::HEALTHY : v1alpha1::UNHEALTHY);
      device->set_last_updated_time(std::time(nullptr));
      device->set_message(one.trouble);
    }
    return answer;
  }

  const std::function<std::optional<std::vector<DeviceHealth>>()> health_;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ending_ = false;
};

Status MakeFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return {};
  return Fail("socket", "cannot make the folder '" + path + "': " + error.message());
}

}  // namespace

class DraServer::Parts {
 public:
  Parts(Claims& claims, const DraServerOptions& options)
      : folder_(options.kubelet_dir + "/plugins/" + kDriverName),
        registry_(options.kubelet_dir + "/plugins_registry"),
        driver_(claims),
        health_(options),
        registration_(options, DriverSocket()) {}

  ~Parts() {
    // No new kubelet finds us, then nobody is served any more.
    if (registration_server_) ::unlink(RegistrationSocket().c_str());
    health_.End();
    const auto deadline = std::chrono::system_clock::now() + kGrace;
    if (registration_server_) registration_server_->Shutdown(deadline);
    if (driver_server_) driver_server_->Shutdown(deadline);
    if (driver_server_) ::unlink(DriverSocket().c_str());
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  Status Start() {
    for (const std::string& folder : {folder_, registry_}) {
      if (auto ok = MakeFolder(folder); !ok) return ok;
    }
    // The driver's first: the kubelet calls it as soon as it sees the other.
    auto driver = ListenOnSocket({&driver_, &health_}, DriverSocket());
    if (!driver) return std::unexpected(driver.error());
    driver_server_ = std::move(*driver);
    auto registration = ListenOnSocket({&registration_}, RegistrationSocket());
    if (!registration) return std::unexpected(registration.error());
    registration_server_ = std::move(*registration);
    return {};
  }

 private:
  std::string DriverSocket() const { return folder_ + "/dra.sock"; }
  std::string RegistrationSocket() const { return registry_ + "/" + kDriverName + "-reg.sock"; }

  const std::string folder_;
  const std::string registry_;
  Driver driver_;
  Health health_;
  Registration registration_;
  std::unique_ptr<grpc::Server> driver_server_;
  std::unique_ptr<grpc::Server> registration_server_;
};

DraServer::DraServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
DraServer::~DraServer() = default;

Result<std::unique_ptr<DraServer>> DraServer::Start(Claims& claims,
                                                    const DraServerOptions& options) {
  auto parts = std::make_unique<Parts>(claims, options);
  if (auto ok = parts->Start(); !ok) return std::unexpected(ok.error());
  return std::unique_ptr<DraServer>(new DraServer(std::move(parts)));
}

}  // namespace prorata::kubernetes
