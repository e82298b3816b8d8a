#include "agent/heartbeat.h"

#include <signal.h>

#include <chrono>

namespace prorata::agent {

Heartbeat::Heartbeat(const DilatedClock& clock)
    : period_ns_(clock.RealNs(protocol::kHeartbeatPeriodNs)),
      silent_after_ns_(clock.RealNs(protocol::kAgentSilentAfterNs)) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Beat(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Heartbeat::Add(protocol::LimitsFile* file) {
  const std::lock_guard lock(mutex_);
  files_.push_back(file);
}

void Heartbeat::Remove(protocol::LimitsFile* file) {
  const std::lock_guard lock(mutex_);
  std::erase(files_, file);
}

void Heartbeat::Beat() {
  std::unique_lock lock(mutex_);
  auto next = std::chrono::steady_clock::now();
  auto last = next;
  while (!ending_) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last >= std::chrono::nanoseconds(silent_after_ns_)) silences_.fetch_add(1);
    last = now;
    for (protocol::LimitsFile* file : files_) file->header.heartbeat.fetch_add(1);
    next += std::chrono::nanoseconds(period_ns_);
    // After a pause of the whole machine: no burst of beats to catch up.
    next = std::max(next, std::chrono::steady_clock::now());
    changed_.wait_until(lock, next, [this] { return ending_; });
  }
}

}  // namespace prorata::agent
