#pragma once

// A thread for calls that may block (NVML, the disk), so that the loop never does. Work runs on the
// thread, in order; what it found is handed to the loop.
//
// A call may never return. It costs what waits behind it, and no more: the queue has a bound, and
// the agent ends without it. The thread is left behind then, so whatever its work uses must live
// as long as the process (Worker::AnyLeftBehind; the program then ends by _exit).

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace prorata::agent {

class Worker {
 public:
  Worker(boost::asio::io_context& loop, size_t max_queued);
  // Lets the queue run dry, for a second at most. Nothing is called on the loop any more.
  ~Worker();

  // `work` on the thread, and then `then` on the loop. False: too much waits already, and neither
  // is called. From the loop's thread only.
  bool Run(std::function<void()> work, std::function<void()> then);

  // For how long the call that is under way has lasted; 0: there is none.
  int64_t BusyNs() const;

  // A worker of this process ended while a call of it had not returned.
  static bool AnyLeftBehind();

 private:
  struct State;
  static void Serve(const std::shared_ptr<State>& state);

  const size_t max_queued_;
  std::shared_ptr<State> state_;
};

}  // namespace prorata::agent
