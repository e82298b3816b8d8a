#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <vector>

#include "agent/runtime/deadline.h"
#include "base/clock.h"
#include "shm/limits_file.h"

namespace prorata::agent {

// Bumps the heartbeat of every limits file at least each 20 ms of the clock, on the agent's loop:
// it says that the loop passes, and so that leases are granted and revoked. A loop that is stuck,
// whatever the reason, has no heartbeat, and members go into failsafe mode. Not thread-safe.
class Heartbeat {
 public:
  Heartbeat(boost::asio::io_context& loop, const DilatedClock& clock);

  void Add(shm::LimitsFile* file);
  // After this the file is not touched any more.
  void Remove(shm::LimitsFile* file);
  // The loop passes for another reason. Spares it a wake-up of its own soon after.
  void LoopPasses();
  // How often it was lost for so long that members may have noticed: the loop was stuck, or this
  // process was stopped. One more before anything else is done after that, the first beat included.
  uint64_t outages() const;

 private:
  void Beat();

  const int64_t period_ns_;      // real
  const int64_t lost_after_ns_;  // real
  std::vector<shm::LimitsFile*> files_;
  mutable uint64_t outages_ = 0;
  mutable int64_t last_ns_;  // of the last beat; or when its absence was counted
  Deadline next_;
};

}  // namespace prorata::agent
