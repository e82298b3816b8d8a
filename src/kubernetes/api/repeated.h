#pragma once

// Work that is done again and again on a thread of its own: soon after somebody asks for it, and
// now and then without.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace prorata::kubernetes {

class Repeated {
 public:
  // At the latest `every` after the call before, and never sooner than `pause` after it.
  Repeated(std::chrono::milliseconds every, std::chrono::milliseconds pause,
           std::function<void()> work);
  ~Repeated() { Stop(); }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;

  // A call begins after this, however often it was asked for. From any thread.
  void Soon();

  // Waits for the call that runs; none follows. Whoever owns what the work uses and what asks for
  // it calls this first. One thread at a time.
  void Stop();

 private:
  void Run();

  const std::chrono::milliseconds every_;
  const std::chrono::milliseconds pause_;
  const std::function<void()> work_;

  std::mutex mutex_;
  std::condition_variable due_;
  bool soon_ = false;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace prorata::kubernetes
