#include "client/session/heartbeat_watch.h"

#include "client/platform/os.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

HeartbeatWatch g_heartbeat_watch;

}  // namespace

int64_t HeartbeatLostNs() {
  return g_heartbeat_watch.Observe(
      g_share.limits.load()->header.heartbeat.load(std::memory_order_relaxed), NowNs());
}

}  // namespace prorata::client
