#include "client/session/helper.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "client/platform/os.h"
#include "client/session/duties.h"

namespace prorata::client {
namespace {

constexpr size_t kStackBytes = 256 << 10;  // the driver runs on it too, for event queries
enum : uint32_t { kNone = 0, kStarting, kRunning, kImpossible };
std::atomic<uint32_t> g_state;

void* Run(void*) {
  prctl(PR_SET_NAME, "prorata");
  kDuties.help();
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
    if (!started)
      StderrMessage("cannot start the helper thread: memory beyond the grant is refused").Print();
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
