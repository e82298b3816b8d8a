#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "agent/runtime/connection.h"
#include "agent/runtime/process.h"

namespace prorata::agent {

using boost::asio::posix::stream_descriptor;

namespace {

constexpr int kMaxAtOnce = 16;  // each may be served at once; then timers and others are served

}  // namespace

Result<UniqueFd> Listen(const std::string& path, mode_t mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Fail("listen", "cannot listen at '" + path + "': a socket's path has at most " +
                              std::to_string(sizeof address.sun_path - 1) +
                              " characters; use a shorter PRORATA_DIR or name");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    const int error_number = errno;
    Error error = FailErrno("listen", "cannot make a socket", error_number).error();
    error.message += DescriptorsRemedy(error_number);
    return std::unexpected(error);
  }
  ::unlink(path.c_str());
  // Between bind and chmod the socket has the umask's mode; nobody can connect before listen.
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(path.c_str(), mode) != 0 || ::listen(fd.get(), 256) != 0) {
    return FailErrno("listen", "cannot listen at '" + path + "'", errno);
  }
  return fd;
}

struct Acceptor::State {
  State(boost::asio::io_context& loop, UniqueFd listener)
      : descriptor(loop, listener.Release()), pause(loop) {}
  stream_descriptor descriptor;
  boost::asio::steady_timer pause;
  std::function<void(UniqueFd)> on_connection;
  bool ended = false;
};

Acceptor::Acceptor(boost::asio::io_context& loop, UniqueFd listener,
                   std::function<void(UniqueFd)> on_connection)
    : state_(std::make_shared<State>(loop, std::move(listener))) {
  state_->on_connection = std::move(on_connection);
  Wait(state_);
}

void Acceptor::Wait(const std::shared_ptr<State>& state) {
  state->descriptor.async_wait(
      stream_descriptor::wait_read, [state](const boost::system::error_code& error) {
        if (error || state->ended) return;
        for (int i = 0; i < kMaxAtOnce; ++i) {
          UniqueFd fd(::accept4(state->descriptor.native_handle(), nullptr, nullptr,
                                SOCK_CLOEXEC | SOCK_NONBLOCK));
          if (fd) {
            state->on_connection(std::move(fd));
            if (state->ended) return;
            continue;
          }
          if (errno == EINTR || errno == ECONNABORTED) continue;
          if (errno == EAGAIN || errno == EWOULDBLOCK) break;
          // Out of descriptors or memory: those who wait stay in the queue for a moment.
          state->pause.expires_after(std::chrono::milliseconds(100));
          state->pause.async_wait([state](const boost::system::error_code& stopped) {
            if (!stopped && !state->ended) Wait(state);
          });
          return;
        }
        Wait(state);
      });
}

Acceptor::~Acceptor() {
  state_->ended = true;
  state_->pause.cancel();
  boost::system::error_code ignored;
  state_->descriptor.close(ignored);
}

}  // namespace prorata::agent
