#pragma once

// How every role ends. Blocks SIGTERM and SIGINT for the threads that are started later.

#include <signal.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdlib>
#include <ctime>

#include "base/result.h"

namespace prorata::apps {

// A role's exit status when it cannot begin; its log says why.
inline int Failed(const Error& error) {
  spdlog::error("{}", error.message);
  return EXIT_FAILURE;
}

class Ending {
 public:
  Ending() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
  }
  // Returns the signal.
  int Wait() const {
    int got = 0;
    ::sigwait(&signals_, &got);
    return got;
  }

  // The signal, or -1 after `most`.
  int WaitFor(std::chrono::seconds most) const {
    const timespec wait = {most.count(), 0};
    return ::sigtimedwait(&signals_, nullptr, &wait);
  }

 private:
  sigset_t signals_;
};

}  // namespace prorata::apps
