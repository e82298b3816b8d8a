#include "kubernetes/nri/nri_plugin.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace prorata::kubernetes {
namespace {

constexpr int kConnectEveryMs = 1'000;
constexpr int kForever = -1;
constexpr size_t kReceiveBytes = 64 << 10;

Result<UniqueFd> Connect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Fail("nri_socket", "the path of the NRI socket, '" + path +
                                  "', is longer than the 107 characters a socket can have; give a "
                                  "shorter one (--nri-socket)");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return FailErrno("nri_socket", "cannot make a socket", errno);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  return FailErrno(
      "nri_socket",
      "cannot connect to the container runtime's NRI socket '" + path +
          "'; is NRI on (containerd 2: it is unless `disable = true`), and is this its "
          "socket (--nri-socket)?",
      errno);
}

Status SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return FailErrno("nri_lost", "cannot send to the container runtime", errno);
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return {};
}

Result<std::string_view> Receive(int fd, std::string* buffer) {
  ssize_t got;
  do {
    got = ::recv(fd, buffer->data(), buffer->size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return FailErrno("nri_lost", "cannot receive from the container runtime", errno);
  if (got == 0) return Fail("nri_lost", "the container runtime closed the NRI connection");
  return std::string_view(*buffer).substr(0, static_cast<size_t>(got));
}

// Takes what was received, and answers.
Status Answer(int fd, std::string* buffer, PluginSession* session) {
  const auto bytes = Receive(fd, buffer);
  if (!bytes) return std::unexpected(bytes.error());
  const auto out = session->Take(*bytes);
  if (!out) return std::unexpected(out.error());
  return SendAll(fd, *out);
}

struct Snapshot final : RuntimeEvents {
  RuntimeState state;

  void Synchronized(const std::vector<RuntimePod>& pods,
                    const std::vector<RuntimeContainer>& containers) override {
    state = {pods, containers};
  }
  Result<std::vector<std::string>> CreateContainer(const RuntimePod&, const RuntimeContainer&,
                                                   std::chrono::steady_clock::time_point) override {
    return std::vector<std::string>();
  }
  void PodRuns(const RuntimePod&) override {}
  void PodEnded(const RuntimePod&) override {}
  void ContainerStopped(const RuntimePod&, const RuntimeContainer&) override {}
  void Disconnected() override {}
};

}  // namespace

Result<RuntimeState> AskRuntime(const std::string& socket_path, const NriPluginName& plugin,
                                std::chrono::milliseconds within) {
  using std::chrono::milliseconds;
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + within;
  const auto fd = Connect(socket_path);
  if (!fd) return std::unexpected(fd.error());
  Snapshot snapshot;
  PluginSession session(snapshot, plugin);
  Status ok = SendAll(fd->get(), session.Begin());
  std::string buffer(kReceiveBytes, '\0');
  while (ok && !session.synchronized()) {
    const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now()).count();
    pollfd runtime = {fd->get(), POLLIN, 0};
    const int ready = left <= 0 ? 0 : ::poll(&runtime, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      return Fail("nri_slow", "the container runtime at '" + socket_path + "' did not say within " +
                                  std::to_string(within.count()) + " ms which pods run");
    }
    ok = Answer(fd->get(), &buffer, &session);
  }
  if (!ok) return std::unexpected(ok.error());
  return std::move(snapshot.state);
}

NriPlugin::NriPlugin(std::string socket_path, NriPluginName plugin, RuntimeEvents& events)
    : socket_path_(std::move(socket_path)),
      plugin_(std::move(plugin)),
      events_(events),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
  PRORATA_CHECK(stop_);
  thread_ = std::thread([this] { Run(); });
}

NriPlugin::~NriPlugin() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void NriPlugin::Run() {
  for (;;) {
    const Status ended = Serve();
    events_.Disconnected();
    if (ended) return;
    Report(ended);
    pollfd stop = {stop_.get(), POLLIN, 0};
    if (::poll(&stop, 1, kConnectEveryMs) > 0) return;
  }
}

void NriPlugin::Report(const Status& ended) {
  if (ended.error().message == trouble_) return;
  trouble_ = ended.error().message;
  spdlog::warn("{}; trying again every second. Until then containers start without this plugin",
               trouble_);
}

bool NriPlugin::Wait(int fd) const {
  std::array<pollfd, 2> waits = {{{fd, POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
  int ready;
  do {
    ready = ::poll(waits.data(), waits.size(), kForever);
  } while (ready < 0 && errno == EINTR);
  return ready > 0 && waits[1].revents == 0;
}

Status NriPlugin::Serve() {
  const auto fd = Connect(socket_path_);
  if (!fd) return std::unexpected(fd.error());
  return Exchange(fd->get());
}

Status NriPlugin::Exchange(int fd) {
  PluginSession session(events_, plugin_);
  if (auto ok = SendAll(fd, session.Begin()); !ok) return ok;
  std::string buffer(kReceiveBytes, '\0');
  bool reported = false;
  while (Wait(fd)) {
    if (auto ok = Answer(fd, &buffer, &session); !ok) return ok;
    if (!session.synchronized() || reported) continue;
    reported = true;
    trouble_.clear();
    spdlog::info("the container runtime at '{}' asks before it makes a container", socket_path_);
  }
  return {};
}

}  // namespace prorata::kubernetes
