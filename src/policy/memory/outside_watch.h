#pragma once

// Which processes are reported as using a share's device without being members of it: those that
// two looks in a row show, each once for as long as it stays. One look is nothing: a process may be
// about to end, or have ended and its number be another's. Pure.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace prorata::policy {

class OutsideWatch {
 public:
  struct Process {
    int64_t pid = 0;
    uint64_t start_ticks = 0;
    auto operator<=>(const Process&) const = default;
  };
  // A container can start processes as it likes: more than these are not told apart.
  static constexpr size_t kMaxReported = 16;

  // Those that are to be reported now.
  std::vector<Process> Poll(const std::set<Process>& seen);
  // Those that were reported and are there still.
  const std::set<Process>& reported() const { return reported_; }

 private:
  std::set<Process> before_;
  std::set<Process> reported_;
};

}  // namespace prorata::policy
