#pragma once

// The event loop: threads that wake at times. Deterministic: equal times go in the order in which
// they were asked for.

#include <cstdint>
#include <queue>
#include <vector>

namespace prorata::simulation {

class EventLoop;

// A simulated thread, or a timer: has at most one time at which it runs next.
class Thread {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  explicit Thread(EventLoop& loop) : loop_(loop) {}
  virtual ~Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void WakeAt(int64_t when_ns);  // instead of what was asked before
  void WakeBy(int64_t when_ns) {
    if (when_ns < wakes_ns_) WakeAt(when_ns);
  }
  void Sleep() {
    ++generation_;
    wakes_ns_ = kNever;
  }
  int64_t wakes_ns() const { return wakes_ns_; }
  uint64_t runs() const { return runs_; }  // how often it woke so far

 protected:
  virtual void Run() = 0;

 private:
  friend class EventLoop;
  EventLoop& loop_;
  uint64_t generation_ = 0;
  int64_t wakes_ns_ = kNever;
  uint64_t runs_ = 0;
};

// Threads must outlive the loop's last RunNext.
class EventLoop {
 public:
  int64_t NextNs() {
    while (!queue_.empty() && queue_.top().generation != queue_.top().thread->generation_) {
      queue_.pop();
    }
    return queue_.empty() ? Thread::kNever : queue_.top().when_ns;
  }
  // NextNs must have found something.
  void RunNext() {
    Thread* thread = queue_.top().thread;
    queue_.pop();
    thread->Sleep();
    ++thread->runs_;
    thread->Run();
    ++events_;
  }
  uint64_t events() const { return events_; }

 private:
  friend class Thread;
  struct Event {
    int64_t when_ns;
    uint64_t order;
    Thread* thread;
    uint64_t generation;
    bool operator<(const Event& other) const {
      return when_ns != other.when_ns ? when_ns > other.when_ns : order > other.order;
    }
  };
  std::priority_queue<Event> queue_;
  uint64_t order_ = 0;
  uint64_t events_ = 0;
};

inline void Thread::WakeAt(int64_t when_ns) {
  wakes_ns_ = when_ns;
  loop_.queue_.push({when_ns, ++loop_.order_, this, ++generation_});
}

}  // namespace prorata::simulation
