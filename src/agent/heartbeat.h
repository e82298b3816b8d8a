#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "protocol/limits_file.h"

namespace prorata::agent {

// Bumps the heartbeat of every limits file each 20 ms of the clock, on a thread that does only
// that: by it members know that the agent lives, however busy its loop is. Thread-safe. Signals are
// blocked on its thread.
class Heartbeat {
 public:
  explicit Heartbeat(const DilatedClock& clock);
  ~Heartbeat();

  void Add(protocol::LimitsFile* file);
  // After this the file is not touched any more.
  void Remove(protocol::LimitsFile* file);
  // How often it fell silent for so long that members may have noticed: this process was stopped,
  // say. One more before the first beat after it.
  uint64_t silences() const { return silences_.load(); }

 private:
  void Beat();

  const int64_t period_ns_;        // real
  const int64_t silent_after_ns_;  // real
  std::atomic<uint64_t> silences_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<protocol::LimitsFile*> files_;  // guarded by mutex_
  bool ending_ = false;                       // guarded by mutex_
  std::thread thread_;
};

}  // namespace prorata::agent
