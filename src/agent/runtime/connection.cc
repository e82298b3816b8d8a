#include "agent/runtime/connection.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "agent/runtime/process.h"

namespace prorata::agent {
namespace {

using boost::asio::posix::stream_descriptor;

constexpr size_t kMaxDescriptors = 4;  // waiting to be taken; a join needs one
constexpr int kReceivesAtOnce = 16;    // then the others are served

// Moves the descriptors of a message to `fds`; false if there were more than anybody needs.
bool TakeDescriptors(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds.size() <= kMaxDescriptors && (message.msg_flags & MSG_CTRUNC) == 0;
}

}  // namespace

Connection::Connection(boost::asio::io_context& loop, UniqueFd socket, size_t max_body,
                       size_t max_unsent)
    : descriptor_(loop, socket.Release()),
      max_unsent_(max_unsent),
      capacity_(wire::kFrameHeaderBytes + max_body),
      buffer_(new uint8_t[capacity_]),  // not touched until used: a control frame may be 1 MiB
      reader_(buffer_.get(), capacity_) {}

void Connection::Start(Handler handler) { handler_ = std::move(handler); }

void Connection::Read() {
  if (!closed_) Receive();
  if (!closed_) WaitToRead();
}

void Connection::WaitToRead() {
  descriptor_.async_wait(stream_descriptor::wait_read,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           if (error || self->closed_) return;
                           for (int i = 0; i < kReceivesAtOnce && self->Receive(); ++i) {
                           }
                           if (!self->closed_) self->WaitToRead();
                         });
}

bool Connection::Receive() {
  iovec part{reader_.Space(), reader_.SpaceBytes()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got =
      ::recvmsg(descriptor_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got <= 0) {
    Close();
    return false;
  }
  const bool bearable = TakeDescriptors(message, fds_);
  reader_.Filled(static_cast<size_t>(got));
  if (bearable && TakeFrames()) return true;
  if (closed_) return false;
  handler_.on_malformed();
  Close();
  return false;
}

bool Connection::TakeFrames() {
  while (!closed_) {
    wire::FrameHeader header;
    const uint8_t* body = nullptr;
    switch (reader_.Next(&header, &body)) {
      case wire::FrameReader::State::kBad:
        return false;
      case wire::FrameReader::State::kNeedMore:
        return true;
      case wire::FrameReader::State::kFrame:
        handler_.on_frame(header, body, fds_);
    }
  }
  return false;
}

void Connection::SendFrame(wire::MessageType type, const void* body, size_t bytes) {
  const wire::FrameHeader header{static_cast<uint32_t>(bytes), static_cast<uint16_t>(type),
                                 wire::kWireVersion};
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  frame.append(static_cast<const char*>(body), bytes);
  Send(frame.data(), frame.size());
}

bool Connection::HasBytesWaiting() {
  int bytes = 0;
  return ::ioctl(descriptor_.native_handle(), FIONREAD, &bytes) == 0 && bytes > 0;
}

void Connection::Send(const void* data, size_t bytes) {
  if (closed_) return;
  unsent_.append(static_cast<const char*>(data), bytes);
  if (!Flush() || unsent_.size() > max_unsent_) {
    // Not from here: the caller may be in the middle of a list of connections.
    boost::asio::post(descriptor_.get_executor(), [self = shared_from_this()] { self->Close(); });
    return;
  }
  if (!unsent_.empty() && !writing_) WaitToWrite();
}

bool Connection::SendBytesWithDescriptor(const void* data, size_t bytes, int fd) {
  // Behind what waits there is no place for a descriptor: it would come with another frame.
  if (closed_ || !unsent_.empty()) return false;
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  // A frame is far smaller than a page: it goes out whole or not at all.
  return ::sendmsg(descriptor_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes);
}

// False: the peer is gone.
bool Connection::Flush() {
  while (!unsent_.empty()) {
    const ssize_t sent = ::send(descriptor_.native_handle(), unsent_.data(), unsent_.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    unsent_.erase(0, static_cast<size_t>(sent));
  }
  return true;
}

void Connection::WaitToWrite() {
  writing_ = true;
  descriptor_.async_wait(stream_descriptor::wait_write,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           self->writing_ = false;
                           if (error || self->closed_) return;
                           if (!self->Flush()) return self->Close();
                           if (!self->unsent_.empty()) self->WaitToWrite();
                         });
}

void Connection::Close() {
  if (closed_) return;
  closed_ = true;
  boost::system::error_code ignored;
  descriptor_.close(ignored);
  fds_.clear();
  if (handler_.on_closed) handler_.on_closed();
  // Close is often called from within one of these functions: they go when it has returned.
  boost::asio::post(descriptor_.get_executor(),
                    [self = shared_from_this()] { self->handler_ = {}; });
}

// Boost.Asio may end a wait although its descriptor is not ready: what it keeps of a descriptor is
// used again for the next one while an event of the last is still in its queue (1.74). Reads do not
// mind, for they find nothing. Seen in a soak: with many processes dying at once, a share's owner
// was taken for dead.
void ProcessWatch::Wait(const std::shared_ptr<stream_descriptor>& state,
                        std::function<void()> on_end) {
  state->async_wait(
      stream_descriptor::wait_read,
      [state, on_end = std::move(on_end)](const boost::system::error_code& error) mutable {
        if (error) return;
        if (!HasEnded(state->native_handle())) return Wait(state, std::move(on_end));
        on_end();
      });
}

ProcessWatch::ProcessWatch(boost::asio::io_context& loop, UniqueFd pidfd,
                           std::function<void()> on_end)
    : state_(std::make_shared<stream_descriptor>(loop, pidfd.Release())) {
  Wait(state_, std::move(on_end));
}

ProcessWatch::~ProcessWatch() {
  boost::system::error_code ignored;
  state_->close(ignored);
}

}  // namespace prorata::agent
