#include "sim/cuda/stream/executor.h"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace prorata::simgpu::driver {
namespace {

struct Entry {
  Context* ctx;
  ActionFunction function;
};

// Leaked, as the Driver is: the thread may be running while the process exits.
struct Executor {
  std::mutex mutex;
  std::condition_variable idle;
  std::map<uint64_t, Entry> entries;
  uint64_t next_token = 1;
  Context* running = nullptr;  // whose action is being run
  bool started = false;
};

Executor& X() {
  static Executor* const executor = new Executor;
  return *executor;
}

// How long to wait before an action that said "not yet" is asked again, in model time.
constexpr int64_t kAskAgainNs = 100'000;

// False when the action is to be asked again.
bool RunOne(const Action& action) {
  Executor& executor = X();
  ActionFunction function;
  {
    std::lock_guard lock(executor.mutex);
    auto entry = executor.entries.find(action.token);
    if (entry == executor.entries.end()) {
      // Its context is going. The machine drops the work with it, or has done so; until then this
      // action must not hold up those of other contexts.
      return D().machine->CompleteAction(action), true;
    }
    executor.running = entry->second.ctx;
    function = std::move(entry->second.function);
  }
  const bool done = function(action);
  {
    std::lock_guard lock(executor.mutex);
    executor.running = nullptr;
    auto entry = executor.entries.find(action.token);
    if (entry != executor.entries.end()) {
      if (done) {
        executor.entries.erase(entry);
      } else {
        entry->second.function = std::move(function);
      }
    }
  }
  executor.idle.notify_all();
  if (!done) return false;
  function = nullptr;  // what it holds (a module, staged bytes) goes before the work counts as done
  D().machine->CompleteAction(action);
  return true;
}

void* ThreadMain(void*) {
  pthread_setname_np(pthread_self(), "simgpu-executor");
  Machine& machine = *D().machine;
  std::vector<Action> again;
  while (true) {
    const int64_t deadline = again.empty() ? kForever : machine.NowNs() + kAskAgainNs;
    auto action = machine.NextAction(D().process, deadline);
    if (action) {
      if (!RunOne(*action)) {
        machine.DeferAction(*action);
        again.push_back(*action);
      }
    } else if (action.error() != Code::kTimedOut) {
      return nullptr;
    }
    std::erase_if(again, RunOne);
  }
}

bool StartThread() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return false;
  pthread_t thread;
  const bool started = pthread_create(&thread, nullptr, ThreadMain, nullptr) == 0;
  if (started) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace

uint64_t AddAction(Context* ctx, ActionFunction function) {
  Executor& executor = X();
  std::lock_guard lock(executor.mutex);
  if (!executor.started) {
    if (!StartThread()) return 0;
    executor.started = true;
  }
  const uint64_t token = executor.next_token++;
  executor.entries.emplace(token, Entry{ctx, std::move(function)});
  return token;
}

void DropAction(uint64_t token) {
  ActionFunction dropped;
  std::lock_guard lock(X().mutex);
  auto entry = X().entries.find(token);
  if (entry == X().entries.end()) return;
  dropped = std::move(entry->second.function);
  X().entries.erase(entry);
}

void RunOutActions(Context* ctx) {
  Executor& executor = X();
  std::vector<ActionFunction> last;
  {
    std::lock_guard lock(executor.mutex);
    for (auto& [token, entry] : executor.entries) {
      // The one that is running has no function here.
      if (entry.ctx == ctx && entry.function) last.push_back(std::move(entry.function));
    }
    std::erase_if(executor.entries, [&](const auto& entry) { return entry.second.ctx == ctx; });
  }
  for (ActionFunction& function : last) function(Action{});
}

void DropActions(Context* ctx) {
  Executor& executor = X();
  std::unique_lock lock(executor.mutex);
  std::erase_if(executor.entries, [&](const auto& entry) { return entry.second.ctx == ctx; });
  executor.idle.wait(lock, [&] { return executor.running != ctx; });
}

}  // namespace prorata::simgpu::driver
