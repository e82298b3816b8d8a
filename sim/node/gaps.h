#pragma once

// How long the device stands still while somebody waits for a lease: from the moment when it idles
// and a program waits, to the next running kernel. Notified at every event what was so since the
// last.

#include <cstdint>
#include <vector>

namespace prorata::simulation {

class GapWatch {
 public:
  struct Gap {
    int64_t end_ns;
    int64_t ns;
  };

  // Until now: the device's busy time, and whether somebody waited since the last step.
  void Step(int64_t now_ns, int64_t busy_ns, bool waited) {
    const int64_t passed_ns = now_ns - now_ns_;
    if (passed_ns == 0) return;
    if (busy_ns > busy_ns_) {
      if (gap_ns_ > 0) gaps_.push_back({now_ns_, gap_ns_});
      gap_ns_ = 0;
    } else if (waited || gap_ns_ > 0) {
      gap_ns_ += passed_ns;  // who was let in needs a moment to launch: that is part of it
    }
    now_ns_ = now_ns;
    busy_ns_ = busy_ns;
  }
  const std::vector<Gap>& gaps() const { return gaps_; }

 private:
  int64_t now_ns_ = 0;
  int64_t busy_ns_ = 0;
  int64_t gap_ns_ = 0;
  std::vector<Gap> gaps_;
};

}  // namespace prorata::simulation
