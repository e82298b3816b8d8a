#include "kubernetes/nri/plugin_session.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "kubernetes/nri/nri.pb.h"
#include "kubernetes/nri/ttrpc.pb.h"

namespace prorata::kubernetes {
namespace {

namespace nri = ::nri::pkg::api::v1alpha1;
using std::chrono::milliseconds;

constexpr char kPluginService[] = "nri.pkg.api.v1alpha1.Plugin";
constexpr char kRuntimeService[] = "nri.pkg.api.v1alpha1.Runtime";
constexpr uint32_t kRegisterStream = 1;  // odd: of who asks
// gRPC's codes.
constexpr int kUnknown = 2;
constexpr int kUnimplemented = 12;
// NRI names no devices of other plugins to a plugin, and refuses one that two of them add. While
// the plugin is upgraded there are two of it: the annotation tells the second what the first has
// added.
constexpr char kAddedDevice[] = "prorata.dev/added-device";
// Of the runtime's patience: what is left is for a machine that is busy.
constexpr int kAnswerWithinPercent = 50;

std::unexpected<Error> BadMessage(std::string_view method) {
  return Fail("nri_protocol",
              "what the container runtime sent as NRI's " + std::string(method) +
                  " cannot be read; which version of NRI has it? prorata-kubernetes "
                  "knows v1alpha1, of containerd 2");
}

RuntimePod PodOf(const nri::PodSandbox& from) {
  RuntimePod pod{from.id(), from.uid(), from.namespace_(), from.name(), {}, from.pid() != 0};
  pod.annotations.insert(from.annotations().begin(), from.annotations().end());
  return pod;
}

RuntimeContainer ContainerOf(const nri::Container& from) {
  RuntimeContainer container{.id = from.id(),
                             .pod_id = from.pod_sandbox_id(),
                             .name = from.name(),
                             .stopped = from.state() == nri::CONTAINER_STOPPED,
                             .environment = {from.env().begin(), from.env().end()},
                             .cdi_devices = {},
                             .mount_targets = {}};
  for (const nri::CDIDevice& device : from.cdi_devices()) {
    container.cdi_devices.push_back(device.name());
  }
  const auto added = from.annotations().find(kAddedDevice);
  if (added != from.annotations().end()) container.cdi_devices.push_back(added->second);
  for (const nri::Mount& mount : from.mounts()) {
    container.mount_targets.push_back(mount.destination());
  }
  return container;
}

constexpr int32_t EventBit(nri::Event event) { return 1 << (event - 1); }

std::string ResponseTo(const TtrpcMessage& request, const Result<std::string>& answer, int code) {
  ttrpc::Response response;
  if (answer) {
    response.set_payload(*answer);
  } else {
    response.mutable_status()->set_code(code);
    response.mutable_status()->set_message(answer.error().message);
  }
  return EncodeFrames(
      {request.connection, request.stream, TtrpcType::kResponse, 0, response.SerializeAsString()});
}

}  // namespace

std::string PluginSession::Begin() const {
  nri::RegisterPluginRequest plugin;
  plugin.set_plugin_name(plugin_.name);
  plugin.set_plugin_idx(plugin_.index);
  ttrpc::Request request;
  request.set_service(kRuntimeService);
  request.set_method("RegisterPlugin");
  request.set_payload(plugin.SerializeAsString());
  return EncodeFrames(
      {kRuntimeConnection, kRegisterStream, TtrpcType::kRequest, 0, request.SerializeAsString()});
}

Result<std::string> PluginSession::Take(std::string_view bytes) {
  const auto messages = decoder_.Take(bytes);
  if (!messages) return std::unexpected(messages.error());
  std::string out;
  for (const TtrpcMessage& message : *messages) {
    const auto answer = Answer(message);
    if (!answer) return answer;
    out += *answer;
  }
  return out;
}

Result<std::string> PluginSession::Answer(const TtrpcMessage& message) {
  if (message.connection == kRuntimeConnection) {
    if (message.type != TtrpcType::kResponse) return std::string();
    ttrpc::Response response;
    if (!response.ParseFromString(message.data)) return BadMessage("answer to RegisterPlugin");
    if (response.status().code() == 0) return std::string();
    return Fail("nri_refused", "the container runtime refused the NRI plugin '" + plugin_.index +
                                   "-" + plugin_.name + "': " + response.status().message());
  }
  if (message.type != TtrpcType::kRequest) return std::string();
  ttrpc::Request request;
  if (!request.ParseFromString(message.data)) return BadMessage("request");
  if (request.service() != kPluginService) {
    return ResponseTo(message, Fail("unknown", "no service " + request.service()), kUnimplemented);
  }
  const auto answer = Call(request.method(), request.payload());
  const bool unknown = !answer && answer.error().code == "unknown_method";
  return ResponseTo(message, answer, unknown ? kUnimplemented : kUnknown);
}

Result<std::string> PluginSession::Call(std::string_view method, const std::string& payload) {
  if (method == "Configure") return Configure(payload);
  if (method == "Synchronize") return Synchronize(payload);
  if (method == "CreateContainer") return CreateContainer(payload);
  if (method == "StopContainer") return StopContainer(payload);
  if (method == "StateChange") return StateChange(payload);
  if (method == "Shutdown") return std::string();
  return Fail("unknown_method", "the plugin has no method " + std::string(method));
}

Result<std::string> PluginSession::Configure(const std::string& payload) {
  nri::ConfigureRequest request;
  if (!request.ParseFromString(payload)) return BadMessage("Configure");
  // Runtimes before NRI 0.4 do not say how long they wait.
  if (request.request_timeout() > 0) {
    answer_within_ = milliseconds(request.request_timeout() * kAnswerWithinPercent / 100);
  }
  if (!plugin_.only_looks) {
    spdlog::info(
        "the container runtime ({} {}) registered the plugin, and waits {} ms for an answer",
        request.runtime_name(), request.runtime_version(), request.request_timeout());
  }
  nri::ConfigureResponse response;
  // No events at all would mean all of them; of this one nobody waits for the answer.
  response.set_events(plugin_.only_looks
                          ? EventBit(nri::POST_UPDATE_POD_SANDBOX)
                          : EventBit(nri::RUN_POD_SANDBOX) | EventBit(nri::STOP_POD_SANDBOX) |
                                EventBit(nri::REMOVE_POD_SANDBOX) |
                                EventBit(nri::CREATE_CONTAINER) | EventBit(nri::STOP_CONTAINER));
  return response.SerializeAsString();
}

Result<std::string> PluginSession::Synchronize(const std::string& payload) {
  nri::SynchronizeRequest request;
  if (!request.ParseFromString(payload)) return BadMessage("Synchronize");
  for (const nri::PodSandbox& pod : request.pods()) pods_.push_back(PodOf(pod));
  for (const nri::Container& container : request.containers()) {
    containers_.push_back(ContainerOf(container));
  }
  if (!request.more()) {
    events_.Synchronized(std::exchange(pods_, {}), std::exchange(containers_, {}));
    synchronized_ = true;
  }
  nri::SynchronizeResponse response;
  response.set_more(request.more());  // "I have taken it": otherwise the runtime gives up
  return response.SerializeAsString();
}

Result<std::string> PluginSession::CreateContainer(const std::string& payload) {
  const auto deadline = std::chrono::steady_clock::now() + answer_within_;
  nri::CreateContainerRequest request;
  if (!request.ParseFromString(payload)) return BadMessage("CreateContainer");
  const auto devices =
      events_.CreateContainer(PodOf(request.pod()), ContainerOf(request.container()), deadline);
  if (!devices) return std::unexpected(devices.error());
  nri::CreateContainerResponse response;
  for (const std::string& device : *devices) {
    response.mutable_adjust()->add_cdi_devices()->set_name(device);
    (*response.mutable_adjust()->mutable_annotations())[kAddedDevice] = device;
  }
  return response.SerializeAsString();
}

Result<std::string> PluginSession::StopContainer(const std::string& payload) {
  nri::StopContainerRequest request;
  if (!request.ParseFromString(payload)) return BadMessage("StopContainer");
  events_.ContainerStopped(PodOf(request.pod()), ContainerOf(request.container()));
  return std::string();
}

Result<std::string> PluginSession::StateChange(const std::string& payload) {
  nri::StateChangeEvent request;
  if (!request.ParseFromString(payload)) return BadMessage("StateChange");
  switch (request.event()) {
    case nri::RUN_POD_SANDBOX:
      events_.PodRuns(PodOf(request.pod()));
      break;
    case nri::STOP_POD_SANDBOX:
    case nri::REMOVE_POD_SANDBOX:
      events_.PodEnded(PodOf(request.pod()));
      break;
    default:
      break;
  }
  return std::string();
}

}  // namespace prorata::kubernetes
