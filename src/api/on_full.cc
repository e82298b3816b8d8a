#include "api/on_full.h"

#include "base/clock.h"
#include "base/duration.h"

namespace prorata::api {

Result<OnFull> ParseOnFull(std::string_view text) {
  constexpr std::string_view kWait = "wait";
  if (text == "fail") return OnFull{};
  if (text == kWait) return OnFull{wire::kWaitForever};
  if (!text.starts_with("wait=")) {
    return Fail("bad_on_full", "'" + std::string(text.substr(0, 80)) +
                                   "' is not fail, wait, or wait=DURATION (for example wait=30s)");
  }
  const auto span_ns = ParseDuration(text.substr(kWait.size() + 1));
  if (!span_ns) return Fail("bad_on_full", span_ns.error().message);
  const int64_t wait_ms = *span_ns / kNsPerMs;
  if (wait_ms == 0) {
    return Fail("bad_on_full", "'" + std::string(text.substr(0, 80)) + "' is shorter than 1ms");
  }
  if (wait_ms >= wire::kWaitForever) {
    return Fail("bad_on_full", "'" + std::string(text.substr(0, 80)) +
                                   "' is longer than 49 days; `wait` alone waits without limit");
  }
  return OnFull{static_cast<uint32_t>(wait_ms)};
}

std::string FormatOnFull(OnFull on_full) {
  if (!on_full.waits()) return "fail";
  if (on_full.wait_ms == wire::kWaitForever) return "wait";
  return "wait=" + FormatDuration(int64_t{on_full.wait_ms} * kNsPerMs);
}

}  // namespace prorata::api
