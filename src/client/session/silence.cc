#include "client/session/silence.h"

#include "client/platform/guest.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

Silence g_silence;

}  // namespace

int64_t AgentSilentNs() {
  return g_silence.Observe(g_share.limits.load()->header.heartbeat.load(std::memory_order_relaxed),
                           NowNs());
}

}  // namespace prorata::client
