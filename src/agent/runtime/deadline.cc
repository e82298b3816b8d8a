#include "agent/runtime/deadline.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace prorata::agent {

Deadline::Deadline(boost::asio::io_context& loop, std::function<void()> then)
    : timer_(loop), then_(std::move(then)) {
  const int timer = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (timer < 0) throw std::system_error(errno, std::generic_category(), "timerfd_create");
  timer_.assign(timer);
  Await();
}

void Deadline::In(int64_t ns) {
  armed_ = true;
  Arm(std::max<int64_t>(1, ns));
}

void Deadline::Never() {
  if (std::exchange(armed_, false)) Arm(0);
}

void Deadline::Arm(int64_t ns) {
  itimerspec once = {};
  once.it_value = {ns / 1'000'000'000, ns % 1'000'000'000};
  ::timerfd_settime(timer_.native_handle(), 0, &once, nullptr);
}

void Deadline::Await() {
  timer_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [this](const boost::system::error_code& stopped) {
                      if (stopped) return;
                      uint64_t times = 0;
                      // Nothing to read: it was moved after it had gone off.
                      const bool due = ::read(timer_.native_handle(), &times, sizeof times) > 0;
                      Await();
                      if (!due) return;
                      armed_ = false;
                      then_();
                    });
}

}  // namespace prorata::agent
