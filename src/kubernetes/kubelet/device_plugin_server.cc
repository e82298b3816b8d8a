#include "kubernetes/kubelet/device_plugin_server.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "kubernetes/kubelet/device_plugin_service.h"
#include "kubernetes/kubelet/listen.h"

namespace prorata::kubernetes {
namespace {

using std::chrono::seconds;

// The kubelet calls back before it answers, for up to ten seconds.
constexpr seconds kRegisterWithin{15};
constexpr seconds kShutdownGrace{2};
constexpr int kPollMs = 1'000;  // in case the folder itself is replaced

// Which file it is: a socket made anew has another number or another time.
struct FileId {
  ino_t inode = 0;
  int64_t changed_ns = 0;
  bool operator==(const FileId&) const = default;
};

std::optional<FileId> FileIdOf(const std::string& path) {
  struct stat seen{};
  if (::stat(path.c_str(), &seen) != 0) return std::nullopt;
  return FileId{seen.st_ino, seen.st_ctim.tv_sec * 1'000'000'000 + seen.st_ctim.tv_nsec};
}

}  // namespace

class DevicePluginServer::Parts {
 public:
  Parts(ContainerShares& shares, DevicePluginOptions options)
      : options_(std::move(options)),
        services_{{{shares, options_.names.memory, true}, {shares, options_.names.compute, false}}},
        files_{"prorata-gpu-memory.sock", "prorata-gpu-compute.sock"},
        wake_(::eventfd(0, EFD_CLOEXEC)),
        thread_([this] { Run(); }) {}

  ~Parts() {
    stopped_ = true;
    Wake();
    thread_.join();
    StopServing();
  }

  void SetCounts(const DeviceCounts& counts) {
    services_[0].SetCount(counts.memory);
    services_[1].SetCount(counts.compute);
    if (!counted_.exchange(true)) Wake();
  }

 private:
  void Wake() {
    const uint64_t one = 1;
    if (::write(wake_.get(), &one, sizeof one) < 0) return;  // it is awake already
  }

  std::string PathOf(const std::string& file) const { return options_.folder + "/" + file; }

  // Serves and registers whenever that is due, and waits for what may make it due.
  void Run() {
    while (!stopped_) {
      const UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
      ::inotify_add_watch(watch.get(), options_.folder.c_str(),
                          IN_CREATE | IN_DELETE | IN_MOVED_TO);
      do {
        if (counted_ && !Registered()) TryRegister();
      } while (WaitForChange(watch.get()) && !stopped_);
    }
  }

  // False: the folder is to be watched anew.
  bool WaitForChange(int watch) {
    std::array<pollfd, 2> fds = {{{watch, POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    const int ready = ::poll(fds.data(), fds.size(), kPollMs);
    std::array<char, 4096> ignored;
    while (::read(watch, ignored.data(), ignored.size()) > 0) {
    }
    if ((fds[1].revents & POLLIN) != 0 && ::read(wake_.get(), ignored.data(), 8) < 0) return false;
    return ready > 0;
  }

  bool Registered() const {
    if (!kubelet_ || FileIdOf(PathOf("kubelet.sock")) != kubelet_) return false;
    for (size_t i = 0; i < files_.size(); ++i) {
      if (!served_[i] || FileIdOf(PathOf(files_[i])) != served_[i]) return false;
    }
    return true;
  }

  void TryRegister() {
    const auto kubelet = FileIdOf(PathOf("kubelet.sock"));
    Status outcome = kubelet ? Serve() : Fail("kubelet", "it is not there");
    for (size_t i = 0; outcome && i < files_.size(); ++i) outcome = Register(i);
    kubelet_ = outcome ? kubelet : std::nullopt;
    const std::string trouble = outcome ? "" : outcome.error().message;
    if (!outcome && trouble != trouble_) {
      spdlog::warn("cannot register with the kubelet at {}: {}; trying again every second",
                   PathOf("kubelet.sock"), trouble);
    }
    trouble_ = trouble;
    if (!outcome) return;
    spdlog::info("the kubelet registered {} and {}", options_.names.memory, options_.names.compute);
  }

  Status Serve() {
    StopServing();
    for (size_t i = 0; i < files_.size(); ++i) {
      auto server = ListenOnSocket({&services_[i]}, PathOf(files_[i]));
      if (!server) return std::unexpected(server.error());
      servers_[i] = std::move(*server);
      served_[i] = FileIdOf(PathOf(files_[i]));
    }
    return {};
  }

  void StopServing() {
    const auto deadline = std::chrono::system_clock::now() + kShutdownGrace;
    for (size_t i = 0; i < files_.size(); ++i) {
      if (servers_[i] == nullptr) continue;
      // gRPC removes the file of that name at the end, whosever it is by then.
      services_[i].EndStreams();
      servers_[i]->Shutdown(deadline);
      servers_[i].reset();
      ::unlink(PathOf(files_[i]).c_str());
      served_[i].reset();
    }
  }

  Status Register(size_t i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kRegisterWithin);
    v1beta1::RegisterRequest request;
    request.set_version("v1beta1");
    request.set_endpoint(files_[i]);
    request.set_resource_name(services_[i].resource());
    request.mutable_options()->set_pre_start_required(true);
    v1beta1::Empty answer;
    const auto channel =
        grpc::CreateChannel("unix:" + PathOf("kubelet.sock"), grpc::InsecureChannelCredentials());
    const auto said = v1beta1::Registration::NewStub(channel)->Register(&context, request, &answer);
    if (!said.ok()) return Fail("kubelet", said.error_message());
    return {};
  }

  const DevicePluginOptions options_;
  std::array<DevicePluginService, 2> services_;
  const std::array<std::string, 2> files_;
  std::array<std::unique_ptr<grpc::Server>, 2> servers_;
  std::array<std::optional<FileId>, 2> served_;
  std::optional<FileId> kubelet_;  // which registered us
  std::string trouble_;
  std::atomic<bool> counted_ = false;
  std::atomic<bool> stopped_ = false;
  const UniqueFd wake_;
  std::thread thread_;
};

DevicePluginServer::DevicePluginServer(ContainerShares& shares, DevicePluginOptions options)
    : parts_(std::make_unique<Parts>(shares, std::move(options))) {}
DevicePluginServer::~DevicePluginServer() = default;

void DevicePluginServer::SetCounts(const DeviceCounts& counts) { parts_->SetCounts(counts); }

}  // namespace prorata::kubernetes
