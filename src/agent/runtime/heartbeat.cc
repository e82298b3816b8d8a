#include "agent/runtime/heartbeat.h"

#include <algorithm>

namespace prorata::agent {

Heartbeat::Heartbeat(boost::asio::io_context& loop, const DilatedClock& clock)
    : period_ns_(clock.RealNs(shm::kHeartbeatPeriodNs)),
      lost_after_ns_(clock.RealNs(shm::kHeartbeatLostAfterNs)),
      last_ns_(RealClock().NowNs()),
      next_(loop, [this] { Beat(); }) {
  next_.In(period_ns_);
}

void Heartbeat::Add(shm::LimitsFile* file) { files_.push_back(file); }

void Heartbeat::Remove(shm::LimitsFile* file) { std::erase(files_, file); }

// Judged by whoever asks, for the loop may come to a message before it comes to the beat.
uint64_t Heartbeat::outages() const {
  const int64_t now_ns = RealClock().NowNs();
  if (now_ns - last_ns_ >= lost_after_ns_) {
    ++outages_;
    last_ns_ = now_ns;
  }
  return outages_;
}

void Heartbeat::LoopPasses() {
  if (RealClock().NowNs() - last_ns_ >= period_ns_ / 4) Beat();
}

void Heartbeat::Beat() {
  outages();
  const int64_t now_ns = RealClock().NowNs();
  // In step with the last one, but without a burst of beats after a pause.
  const int64_t late_ns = std::clamp<int64_t>(now_ns - last_ns_ - period_ns_, 0, period_ns_ / 2);
  last_ns_ = now_ns;
  for (shm::LimitsFile* file : files_) file->header.heartbeat.fetch_add(1);
  next_.In(period_ns_ - late_ns);
}

}  // namespace prorata::agent
