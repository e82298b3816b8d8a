#pragma once

// How every role ends. Blocks SIGTERM and SIGINT for the threads that are started later.

#include <signal.h>

namespace prorata::kubernetes {

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

 private:
  sigset_t signals_;
};

}  // namespace prorata::kubernetes
