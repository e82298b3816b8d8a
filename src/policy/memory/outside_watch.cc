#include "policy/memory/outside_watch.h"

namespace prorata::policy {

std::vector<OutsideWatch::Process> OutsideWatch::Poll(const std::set<Process>& seen) {
  std::erase_if(reported_, [&](const Process& process) { return !seen.contains(process); });
  std::vector<Process> begun;
  for (const Process& process : seen) {
    if (reported_.size() >= kMaxReported) break;
    if (before_.contains(process) && reported_.insert(process).second) begun.push_back(process);
  }
  before_ = seen;
  return begun;
}

}  // namespace prorata::policy
