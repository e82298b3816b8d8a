#include "sim/cuda/stream/executor.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace prorata::simgpu::driver {
namespace {

struct Entry {
  Context* ctx;
  ActionFunction function;
  RunsOn thread;
};

// Leaked, as the Driver is: its threads may be running while the process exits.
struct Executor {
  std::mutex mutex;
  std::condition_variable idle;
  std::map<uint64_t, Entry> entries;
  uint64_t next_token = 1;
  std::array<Context*, 2> running = {};  // whose action each thread runs
  std::array<bool, 2> started = {};
  // For the host thread:
  std::condition_variable due;
  std::deque<Action> host_actions;
};

Executor& X() {
  static Executor* const executor = new Executor;
  return *executor;
}

// How long to wait before an action that said "not yet" is asked again, in model time.
constexpr int64_t kAskAgainNs = 100'000;

size_t IndexOf(RunsOn thread) { return static_cast<size_t>(thread); }

// False when the action is to be asked again.
bool RunOne(const Action& action) {
  Executor& executor = X();
  ActionFunction function;
  size_t thread;
  {
    std::lock_guard lock(executor.mutex);
    auto entry = executor.entries.find(action.token);
    if (entry == executor.entries.end()) {
      // Its context is going. The machine drops the work with it, or has done so; until then this
      // action must not hold up those of other contexts.
      return D().machine->CompleteAction(action), true;
    }
    thread = IndexOf(entry->second.thread);
    executor.running[thread] = entry->second.ctx;
    function = std::move(entry->second.function);
  }
  const bool done = function(action);
  {
    std::lock_guard lock(executor.mutex);
    executor.running[thread] = nullptr;
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

// True: it is the host thread's now, and the machine hands out others meanwhile.
bool HandOver(const Action& action) {
  Executor& executor = X();
  std::lock_guard lock(executor.mutex);
  const auto entry = executor.entries.find(action.token);
  if (entry == executor.entries.end() || entry->second.thread != RunsOn::kHostThread) return false;
  D().machine->DeferAction(action);
  executor.host_actions.push_back(action);
  executor.due.notify_one();
  return true;
}

void* HostThreadMain(void*) {
  pthread_setname_np(pthread_self(), "simgpu-host");
  Executor& executor = X();
  while (true) {
    std::unique_lock lock(executor.mutex);
    executor.due.wait(lock, [&] { return !executor.host_actions.empty(); });
    const Action action = executor.host_actions.front();
    executor.host_actions.pop_front();
    lock.unlock();
    RunOne(action);
  }
}

void* ThreadMain(void*) {
  pthread_setname_np(pthread_self(), "simgpu-executor");
  Machine& machine = *D().machine;
  std::vector<Action> again;
  while (true) {
    const int64_t deadline = again.empty() ? kForever : machine.NowNs() + kAskAgainNs;
    auto action = machine.NextAction(D().process, deadline);
    if (action) {
      if (!HandOver(*action) && !RunOne(*action)) {
        machine.DeferAction(*action);
        again.push_back(*action);
      }
    } else if (action.error() != Code::kTimedOut) {
      return nullptr;
    }
    std::erase_if(again, RunOne);
  }
}

bool StartThread(void* (*main)(void*)) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return false;
  pthread_t thread;
  const bool started = pthread_create(&thread, nullptr, main, nullptr) == 0;
  if (started) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace

uint64_t AddAction(Context* ctx, ActionFunction function, RunsOn thread) {
  Executor& executor = X();
  std::lock_guard lock(executor.mutex);
  for (const RunsOn needed : {RunsOn::kExecutor, thread}) {
    bool& started = executor.started[IndexOf(needed)];
    if (started) continue;
    if (!StartThread(needed == RunsOn::kExecutor ? ThreadMain : HostThreadMain)) return 0;
    started = true;
  }
  const uint64_t token = executor.next_token++;
  executor.entries.emplace(token, Entry{ctx, std::move(function), thread});
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
  executor.idle.wait(lock, [&] { return std::ranges::count(executor.running, ctx) == 0; });
}

}  // namespace prorata::simgpu::driver
