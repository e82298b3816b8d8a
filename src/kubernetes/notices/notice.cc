#include "kubernetes/notices/notice.h"

#include <algorithm>
#include <array>

namespace prorata::kubernetes {
namespace {

using api::EventKind;

struct Reason {
  EventKind kind;
  bool warning;
  const char* reason;
};

constexpr std::array kReasons = {
    Reason{EventKind::kRefusal, true, "GpuMemoryRefused"},
    Reason{EventKind::kWaitBegun, false, "GpuMemoryAwaited"},
    Reason{EventKind::kWaitEnded, false, "GpuMemoryWaitEnded"},
    Reason{EventKind::kMemberRefused, true, "GpuProcessRefused"},
    Reason{EventKind::kBypassSuspected, true, "GpuBypassSuspected"},
    Reason{EventKind::kBypassOver, false, "GpuBypassOver"},
    Reason{EventKind::kOutsideProcess, true, "GpuProcessOutsideShare"},
    Reason{EventKind::kFalseUsage, true, "GpuUsageFalse"},
    Reason{EventKind::kUngovernedFunctions, true, "GpuFunctionsUngoverned"},
    Reason{EventKind::kPersistentKernel, true, "GpuKernelDoesNotEnd"},
    Reason{EventKind::kPersistentKernelOver, false, "GpuKernelEnded"},
};

}  // namespace

std::optional<Notice> NoticeOf(const api::Event& event) {
  const auto* const found = std::ranges::find(kReasons, event.kind, &Reason::kind);
  if (found == kReasons.end() || event.share.empty()) return std::nullopt;
  return Notice{found->warning, found->reason, Words(event)};
}

std::optional<Notice> NoticeFilter::Admit(const api::Event& event, int64_t now_ms) {
  if (event.kind == EventKind::kShareEnded) {
    std::erase_if(said_, [&](const auto& said) { return said.first.first == event.share; });
  }
  auto notice = NoticeOf(event);
  if (!notice) return std::nullopt;
  const auto [said, is_new] = said_.try_emplace({event.share, event.kind});
  Said& last = said->second;
  if (!is_new && now_ms - last.at_ms < kEveryMs) {
    last.withheld += event.count;
    return std::nullopt;
  }
  if (last.withheld > 0) {
    notice->message += "; " + std::to_string(last.withheld) + " more like this were not told";
  }
  last = {now_ms, 0};
  return notice;
}

}  // namespace prorata::kubernetes
