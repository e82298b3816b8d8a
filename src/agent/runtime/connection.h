#pragma once

// A framed unix stream socket on the loop, for member and control sockets alike.
//
// Bytes come in any chunks; whole frames go to the handler, with the descriptors that came along.
// What cannot be followed (a body over the cap, descriptors without bound) ends the connection, and
// a peer that does not read what it is sent is dropped when `max_unsent` bytes wait for it.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "wire/frame.h"

namespace prorata::agent {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Handler {
    // `fds`: what was received so far and not taken. May close the connection.
    std::function<void(const wire::FrameHeader&, const uint8_t* body, std::vector<UniqueFd>& fds)>
        on_frame;
    // The stream cannot be followed; the connection is closed after this.
    std::function<void()> on_malformed;
    // The last call: the peer is gone, or Close was called. The descriptor is closed.
    std::function<void()> on_closed;
  };

  Connection(boost::asio::io_context& loop, UniqueFd socket, size_t max_body, size_t max_unsent);

  void Start(Handler handler);
  // Hands out what has come by now, of one read, and from then on what comes. Who connects speaks
  // at once, as a rule: so it is served at once, and before others that connected after it.
  void Read();
  void Send(const void* data, size_t bytes);
  void SendFrame(wire::MessageType type, const void* body, size_t bytes);
  template <typename Message>
  void SendMessage(wire::MessageType type, const Message& message) {
    SendFrame(type, &message, sizeof message);
  }
  // A message with a descriptor on its first byte. False: it cannot go out now, and was not sent.
  template <typename Message>
  bool SendWithDescriptor(wire::MessageType type, const Message& message, int fd) {
    const wire::Frame<Message> frame(type, message);
    return SendBytesWithDescriptor(&frame, sizeof frame, fd);
  }
  // What waits to be sent is tried once more, and lost otherwise.
  void Close();
  bool closed() const { return closed_; }
  size_t unsent_bytes() const { return unsent_.size(); }
  int fd() { return descriptor_.native_handle(); }
  // Whether the kernel has something for us that the loop has not come to yet.
  bool HasBytesWaiting();

 private:
  void WaitToRead();
  void WaitToWrite();
  bool Receive();  // false: nothing more for now, or closed
  bool TakeFrames();
  bool Flush();
  bool SendBytesWithDescriptor(const void* data, size_t bytes, int fd);

  boost::asio::posix::stream_descriptor descriptor_;
  size_t max_unsent_;
  size_t capacity_;
  std::unique_ptr<uint8_t[]> buffer_;
  wire::FrameReader reader_;
  Handler handler_;
  std::vector<UniqueFd> fds_;
  std::string unsent_;
  bool writing_ = false;
  bool closed_ = false;
};

// Calls back once, on the loop, when a process has ended. Ends with the object.
class ProcessWatch {
 public:
  ProcessWatch(boost::asio::io_context& loop, UniqueFd pidfd, std::function<void()> on_end);
  int pidfd() { return state_->native_handle(); }
  ~ProcessWatch();

 private:
  static void Wait(const std::shared_ptr<boost::asio::posix::stream_descriptor>& state,
                   std::function<void()> on_end);
  std::shared_ptr<boost::asio::posix::stream_descriptor> state_;
};

// Binds and listens on a unix socket at `path`, replacing what is there. "listen" if it cannot be.
Result<UniqueFd> Listen(const std::string& path, mode_t mode);

// Accepts for ever on a listening socket and hands out what it gets. Ends with the object.
class Acceptor {
 public:
  Acceptor(boost::asio::io_context& loop, UniqueFd listener,
           std::function<void(UniqueFd)> on_connection);
  ~Acceptor();

 private:
  struct State;
  static void Wait(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;
};

}  // namespace prorata::agent
