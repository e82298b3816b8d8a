#include "agent/runtime/worker.h"

#include <signal.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace prorata::agent {
namespace {

constexpr auto kLastJobWithin = std::chrono::seconds(1);

std::atomic<bool> g_left_behind{false};

}  // namespace

struct Worker::State {
  struct Job {
    std::function<void()> work;
    std::function<void()> then;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> queue;
  boost::asio::io_context* loop = nullptr;  // null: the worker is gone, and the loop may be too
  bool ended = false;
  int64_t since_ns = -1;  // when the call that is under way began; -1: there is none
};

Worker::Worker(boost::asio::io_context& loop, size_t max_queued)
    : max_queued_(max_queued), state_(std::make_shared<State>()) {
  state_->loop = &loop;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the loop's
  std::thread([state = state_] { Serve(state); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Worker::~Worker() {
  std::unique_lock lock(state_->mutex);
  state_->loop = nullptr;
  state_->changed.notify_all();
  if (!state_->changed.wait_for(lock, kLastJobWithin, [this] { return state_->ended; })) {
    state_->queue.clear();
    g_left_behind = true;
  }
}

void Worker::Serve(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return !state->queue.empty() || state->loop == nullptr; });
    if (state->queue.empty()) break;
    State::Job job = std::move(state->queue.front());
    state->queue.pop_front();
    state->since_ns = RealClock().NowNs();
    lock.unlock();
    job.work();
    job.work = nullptr;  // what it holds ends here, not under the lock
    lock.lock();
    state->since_ns = -1;
    // Under the lock, so that the loop is still there.
    if (state->loop != nullptr && job.then) boost::asio::post(*state->loop, std::move(job.then));
  }
  state->ended = true;
  state->changed.notify_all();
}

bool Worker::Run(std::function<void()> work, std::function<void()> then) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->queue.size() >= max_queued_) return false;
    state_->queue.push_back({std::move(work), std::move(then)});
  }
  state_->changed.notify_all();
  return true;
}

int64_t Worker::BusyNs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->since_ns < 0 ? 0 : RealClock().NowNs() - state_->since_ns;
}

bool Worker::AnyLeftBehind() { return g_left_behind; }

}  // namespace prorata::agent
