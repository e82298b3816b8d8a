#pragma once

// Which of the agent's events are worth an event on a pod, and in which words. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "api/event.h"

namespace prorata::kubernetes {

struct Notice {
  bool warning = false;
  std::string reason;
  std::string message;
};

// Nothing: whoever looks at a pod does not need to know.
std::optional<Notice> NoticeOf(const api::Event& event);

// A program can be refused memory each second for days, and each event on a pod is a write in the
// cluster's store: of each kind and share one is let through a minute, which says how many more
// there were. One thread.
class NoticeFilter {
 public:
  static constexpr int64_t kEveryMs = 60'000;

  // `now_ms`: of a clock that does not go back.
  std::optional<Notice> Admit(const api::Event& event, int64_t now_ms);

 private:
  struct Said {
    int64_t at_ms = 0;
    uint64_t withheld = 0;
  };
  std::map<std::pair<std::string, api::EventKind>, Said> said_;
};

}  // namespace prorata::kubernetes
