#include "agent/compute/trace_ring.h"

#include <utility>

namespace prorata::agent {

uint32_t TraceRing::AddLane(uint64_t share, std::string name) {
  std::erase_if(lanes_, [this](const auto& lane) {
    return lane.second.ended != 0 && lane.second.ended < oldest();
  });
  lanes_[next_lane_] = {share, std::move(name)};
  return next_lane_++;
}

void TraceRing::NameLane(uint32_t lane, std::string name) {
  const auto found = lanes_.find(lane);
  if (found != lanes_.end()) found->second.name = std::move(name);
}

void TraceRing::EndLane(uint32_t lane) {
  const auto found = lanes_.find(lane);
  if (found != lanes_.end()) found->second.ended = written_;
}

const TraceRing::Lane* TraceRing::FindLane(uint32_t lane) const {
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? nullptr : &found->second;
}

uint64_t TraceRing::FirstSince(int64_t time_ns) const {
  uint64_t from = oldest(), to = written_ + 1;
  while (from < to) {
    const uint64_t middle = from + (to - from) / 2;
    if (At(middle).time_ns < time_ns) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  return from;
}

}  // namespace prorata::agent
