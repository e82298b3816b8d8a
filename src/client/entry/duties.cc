// The helper thread's work, and what else the session asks of memory and compute.

#include "client/session/duties.h"

#include "client/compute/compute.h"
#include "client/entry/join.h"
#include "client/memory/charge.h"
#include "client/memory/pools.h"
#include "client/memory/sharing.h"
#include "client/platform/os.h"
#include "client/session/connection.h"
#include "client/session/requests.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

constexpr int64_t kReconnectEveryNs = 50'000'000;
constexpr int64_t kPoolsEveryNs = 100'000'000;

// Joins again. The program goes on meanwhile with the grant and the lease it has.
void Reconnect(int64_t now_ns, int64_t* next_ns) {
  if (now_ns < *next_ns) return;
  wire::Refused refused;
  // What else it looks after goes on: an agent that is stopped takes the connection and does not
  // answer.
  const auto meanwhile = [] { return TickCompute(NowNs()); };
  const JoinResult result = JoinAgent(now_ns + 1'000'000'000, &refused, 0, meanwhile);
  if (result == JoinResult::kJoined) {
    ReportReferences();  // before those who wait ask anything that depends on it
    ConnectionMade();
    LeasesRejoined();
    return;
  }
  // A refusal (the share has ended, say) will hardly change; ask now and then.
  *next_ns = NowNs() + (result == JoinResult::kRefused ? 20 : 1) * kReconnectEveryNs;
}

void Wait(int64_t timeout_ns) {
  if (AwaitReadable(g_share.socket.load(), timeout_ns)) ReadAgent();
}

void Help() {
  int64_t next_connect_ns = 0, next_pools_ns = 0;
  for (;;) {
    int64_t now_ns = NowNs();
    if (g_share.socket.load() < 0) {
      Reconnect(now_ns, &next_connect_ns);
      now_ns = NowNs();  // it may have ticked itself
    }
    const int64_t poll_again_ns = TickCompute(now_ns);
    if (now_ns >= next_pools_ns) {
      SettleChangedPools();
      next_pools_ns = now_ns + kPoolsEveryNs;
    }
    const int64_t most_ns = g_share.socket.load() < 0 ? kReconnectEveryNs : kPoolsEveryNs;
    Wait(Max(int64_t{1}, Min(poll_again_ns - (NowNs() - now_ns), most_ns)));
  }
}

}  // namespace

constinit const Duties kDuties = {
    .watch_forks = WatchForks,
    .help = Help,
    .overhead_measured = SettleOverhead,
    .opening_answered = OpeningAnswered,
    .opening_unwanted = OpeningUnwanted,
    .take_memory = TakeMemory,
};

}  // namespace prorata::client
