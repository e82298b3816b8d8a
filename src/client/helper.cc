#include "client/helper.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "client/compute/compute.h"
#include "client/connection.h"
#include "client/guest.h"
#include "client/pools.h"
#include "client/requests.h"
#include "client/share.h"
#include "client/sharing.h"

namespace prorata::client {
namespace {

constexpr size_t kStackBytes = 256 << 10;  // the driver runs on it too, for event queries
constexpr int64_t kReconnectEveryNs = 50'000'000;
constexpr int64_t kPoolsEveryNs = 100'000'000;

enum : uint32_t { kNone = 0, kStarting, kRunning, kImpossible };
std::atomic<uint32_t> g_state;

// Joins again. The program goes on meanwhile with the grant and the lease it has.
void Reconnect(int64_t now_ns, int64_t* next_ns) {
  if (now_ns < *next_ns) return;
  protocol::Refused refused;
  // What else it looks after goes on: an agent that is stopped takes the connection and does not
  // answer.
  const auto meanwhile = [] { return TickCompute(NowNs()); };
  const JoinResult result = JoinAgent(now_ns + 1'000'000'000, &refused, 0, meanwhile);
  if (result == JoinResult::kJoined) {
    TellHoldings();  // before those who wait ask anything that depends on it
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

void* Run(void*) {
  prctl(PR_SET_NAME, "prorata");
  int64_t next_connect_ns = 0, next_pools_ns = 0;
  for (;;) {
    int64_t now_ns = NowNs();
    if (g_share.socket.load() < 0) {
      Reconnect(now_ns, &next_connect_ns);
      now_ns = NowNs();  // it may have ticked itself
    }
    const int64_t look_again_ns = TickCompute(now_ns);
    if (now_ns >= next_pools_ns) {
      SettleChangedPools();
      next_pools_ns = now_ns + kPoolsEveryNs;
    }
    const int64_t most_ns = g_share.socket.load() < 0 ? kReconnectEveryNs : kPoolsEveryNs;
    Wait(Max(int64_t{1}, Min(look_again_ns - (NowNs() - now_ns), most_ns)));
  }
  return nullptr;
}

// The pthread functions by dlsym: in glibc before 2.34 they live in libpthread, which we do not
// want every process that we are preloaded into to load. A process that uses CUDA has it.
void* Pthread(const char* name) {
  void* function = dlsym(RTLD_DEFAULT, name);
  if (function != nullptr) return function;
  void* library = dlopen("libpthread.so.0", RTLD_NOW | RTLD_LOCAL);
  return library != nullptr ? dlsym(library, name) : nullptr;
}

bool StartThread() {
  const auto create = reinterpret_cast<decltype(&pthread_create)>(Pthread("pthread_create"));
  const auto set_stack =
      reinterpret_cast<decltype(&pthread_attr_setstacksize)>(Pthread("pthread_attr_setstacksize"));
  const auto init = reinterpret_cast<decltype(&pthread_attr_init)>(Pthread("pthread_attr_init"));
  const auto set_detached = reinterpret_cast<decltype(&pthread_attr_setdetachstate)>(
      Pthread("pthread_attr_setdetachstate"));
  pthread_attr_t attributes;
  if (create == nullptr || init == nullptr || set_detached == nullptr || set_stack == nullptr ||
      init(&attributes) != 0) {
    return false;
  }
  set_detached(&attributes, PTHREAD_CREATE_DETACHED);
  set_stack(&attributes, kStackBytes);
  // The thread inherits the mask; the program's signals are the program's threads' business.
  uint64_t all = ~uint64_t{0}, before = 0;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
  pthread_t thread;
  int failed = create(&thread, &attributes, Run, nullptr);
  if (failed != 0) {
    // Much thread-local storage in the program may not leave room in a small stack.
    set_stack(&attributes, size_t{8} << 20);
    failed = create(&thread, &attributes, Run, nullptr);
  }
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof before);
  return failed == 0;
}

}  // namespace

bool EnsureHelper() {
  uint32_t state = g_state.load(std::memory_order_acquire);
  if (state == kRunning) return true;
  if (state == kNone && g_state.compare_exchange_strong(state, kStarting)) {
    const bool started = StartThread();
    if (!started) Line("cannot start the helper thread: memory beyond the grant is refused").Say();
    g_state.store(started ? kRunning : kImpossible, std::memory_order_release);
    FutexWakeAll(&g_state);
    return started;
  }
  while ((state = g_state.load(std::memory_order_acquire)) == kStarting) {
    FutexWait(&g_state, kStarting, 1'000'000'000);
  }
  return state == kRunning;
}

void ForgetHelper() { g_state.store(kNone); }

}  // namespace prorata::client
