#pragma once

// A time on the loop at which something is to be done, and which is moved all the time: moving it
// is one call of the kernel. (A timer of Boost.Asio's runs a handler for each wait that is moved,
// and sets the loop's own timer twice.) For use on the loop's thread only; `then` may move it.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>

namespace prorata::agent {

class Deadline {
 public:
  // Throws std::system_error where no timer is to be had, as the loop itself does.
  Deadline(boost::asio::io_context& loop, std::function<void()> then);

  // In so many real nanoseconds, and no more when it was to be before. At least one.
  void In(int64_t ns);
  void Never();

 private:
  void Await();
  void Arm(int64_t ns);

  boost::asio::posix::stream_descriptor timer_;
  std::function<void()> then_;
  bool armed_ = false;  // or there is nothing for Never to do
};

}  // namespace prorata::agent
