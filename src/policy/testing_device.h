#pragma once

// For tests of TimeSharing: programs, a device and an agent in virtual time, small enough to run
// thousands of seconds of it. Messages between program and agent arrive late, by up to a stated
// delay; a program's launches see the lease word at once, as an atomic load does.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <vector>

#include "policy/time_sharing.h"

namespace prorata::policy::testing {

inline constexpr int64_t kUs = 1'000;
inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kS = 1'000'000'000;

struct Program {
  ComputeTerms terms;
  int64_t kernel_min_ns = 20 * kUs;
  int64_t kernel_max_ns = 5 * kMs;
  int64_t start_ns = 0;
  int64_t stop_ns = TimeSharing::kNever;  // launches nothing after this
  int64_t burst_ns = 0;                   // device time between two gaps; 0: no gaps
  int64_t gap_ns = 0;
  // So many members at once: each measures the others' time too, and reports it as its own.
  int members = 1;
  bool never_drains = false;  // its first kernel under a lease lasts for ever, unmeasured
};

class Machine {
 public:
  Machine(std::vector<Program> programs, uint32_t seed, int64_t delay_max_ns,
          TimeSharingOptions options = {})
      : random_(seed), delay_max_ns_(delay_max_ns), options_(options), sharing_(options) {
    for (const Program& program : programs) clients_.push_back({program});
    for (size_t i = 0; i < clients_.size(); ++i) {
      At(clients_[i].program.start_ns, [this, i] {
        sharing_.Add(i, clients_[i].program.terms, 0, now_);
        clients_[i].started = true;
        Decide();
        Pump(i);
      });
    }
  }

  void RunUntil(int64_t end_ns) {
    while (!events_.empty() && events_.top().when <= end_ns) {
      Event event = events_.top();
      events_.pop();
      Count(event.when);
      event.what();
    }
    Count(end_ns);
  }

  // Device time of a program so far, running kernels included up to now.
  int64_t Used(size_t i) const {
    const Client& c = clients_[i];
    return c.charged_ns + (running_ == static_cast<int>(i) ? now_ - running_since_ : 0);
  }
  int64_t UsedByAll() const {
    int64_t sum = 0;
    for (size_t i = 0; i < clients_.size(); ++i) sum += Used(i);
    return sum;
  }
  // Time in which the device idled although a program, not held by its limit, had work.
  int64_t wasted_ns() const { return wasted_ns_; }
  int64_t longest_wait_ns() const { return longest_wait_ns_; }
  int64_t switches() const { return switches_; }
  const TimeSharing& sharing() const { return sharing_; }
  int64_t now() const { return now_; }

 private:
  struct Client {
    Program program;
    bool started = false;
    bool open = false;
    bool contended = false;
    bool wanted_sent = false;
    bool drain_due = false;
    bool stuck = false;
    uint64_t sequence = 0;
    uint64_t launches = 0;
    int64_t queued_ns = 0;  // launched, not done
    int64_t charged_ns = 0;
    int64_t burst_left_ns = 0;
    int64_t quiet_until_ns = 0;
    int64_t next_kernel_ns = 0;
    int64_t waiting_since_ns = -1;
  };
  struct Event {
    int64_t when;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return when != other.when ? when > other.when : order > other.order;
    }
  };
  struct Kernel {
    size_t client;
    int64_t duration_ns;
  };

  int64_t Pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  int64_t Delay() { return delay_max_ns_ == 0 ? 0 : Pick(20 * kUs, delay_max_ns_); }
  void At(int64_t when, std::function<void()> what) {
    events_.push({std::max(when, now_), ++order_, std::move(what)});
  }

  void Count(int64_t when) {
    bool wanted = false;
    for (const Client& c : clients_) wanted |= HasWork(c) && !c.stuck;
    if (running_ < 0 && wanted) wasted_ns_ += when - now_;
    now_ = when;
  }
  bool HasWork(const Client& c) const {
    return c.started && now_ < c.program.stop_ns && now_ >= c.quiet_until_ns;
  }

  int64_t NextKernel(Client& c) {
    if (c.next_kernel_ns == 0) {
      c.next_kernel_ns = Pick(c.program.kernel_min_ns, c.program.kernel_max_ns);
    }
    return c.next_kernel_ns;
  }

  // The program launches all it may: while the lease is open and the backlog has room.
  void Pump(size_t i) {
    Client& c = clients_[i];
    while (HasWork(c) && !c.stuck) {
      if (!c.open) return SendWanted(i);
      const int64_t bound = c.contended ? options_.backlog_contended_ns : 20 * kMs;
      if (c.queued_ns > 0 && c.queued_ns + NextKernel(c) > bound) return;
      if (c.program.never_drains) {
        c.stuck = true;
        return;
      }
      Launch(i);
    }
    if (HasWork(c) || c.queued_ns > 0 || !c.open) return;
    const uint64_t sequence = c.sequence;
    const int64_t idle_since = now_;
    const uint64_t launches = c.launches;
    At(now_ + 100 * kUs + Delay(), [this, i, sequence, idle_since, launches] {
      Client& client = clients_[i];
      if (client.launches != launches) return;  // a gap too short to be told of
      const bool still = client.sequence == sequence && client.queued_ns == 0 && !HasWork(client) &&
                         client.contended && client.quiet_until_ns >= idle_since;
      if (!still && client.program.stop_ns > now_) return;
      if (client.sequence != sequence || client.queued_ns > 0) return;
      ReportAll();
      sharing_.Idle(i, now_);
      Decide();
    });
  }

  void Launch(size_t i) {
    Client& c = clients_[i];
    const int64_t duration = NextKernel(c);
    c.next_kernel_ns = 0;
    c.queued_ns += duration;
    if (c.waiting_since_ns >= 0) {
      longest_wait_ns_ = std::max(longest_wait_ns_, now_ - c.waiting_since_ns);
      c.waiting_since_ns = -1;
    }
    ++c.launches;
    queue_.push_back({i, duration});
    if (c.program.burst_ns > 0) {
      if (c.burst_left_ns <= 0) c.burst_left_ns = c.program.burst_ns;
      c.burst_left_ns -= duration;
      if (c.burst_left_ns <= 0) c.quiet_until_ns = TimeSharing::kNever;  // until it has run
    }
    StartNext();
  }

  void StartNext() {
    if (running_ >= 0 || queue_.empty()) return;
    const Kernel kernel = queue_.front();
    queue_.pop_front();
    running_ = static_cast<int>(kernel.client);
    running_since_ = now_;
    At(now_ + kernel.duration_ns, [this, kernel] { Done(kernel); });
  }

  void Done(const Kernel& kernel) {
    Client& c = clients_[kernel.client];
    running_ = -1;
    c.charged_ns += kernel.duration_ns;
    c.queued_ns -= kernel.duration_ns;
    StartNext();
    if (c.queued_ns == 0 && c.quiet_until_ns == TimeSharing::kNever) {
      c.quiet_until_ns = now_ + c.program.gap_ns;
      At(c.quiet_until_ns, [this, i = kernel.client] { Pump(i); });
    }
    if (c.queued_ns == 0 && !c.open && c.drain_due) SendDrained(kernel.client);
    Pump(kernel.client);
  }

  void SendWanted(size_t i) {
    Client& c = clients_[i];
    if (c.waiting_since_ns < 0) c.waiting_since_ns = now_;
    if (c.wanted_sent) return;
    c.wanted_sent = true;
    At(now_ + Delay(), [this, i] {
      ReportAll();
      sharing_.Wanted(i, now_);
      Decide();
    });
  }

  void SendDrained(size_t i) {
    Client& c = clients_[i];
    c.drain_due = false;
    const uint64_t sequence = c.sequence;
    At(now_ + Delay(), [this, i, sequence] {
      if (clients_[i].sequence != sequence) return;
      ReportAll();
      sharing_.Drained(i, now_);
      Decide();
    });
  }

  void ReportAll() {
    for (size_t i = 0; i < clients_.size(); ++i) {
      const int64_t reported_ns = clients_[i].charged_ns * clients_[i].program.members;
      sharing_.Report(i, static_cast<uint64_t>(reported_ns), clients_[i].queued_ns);
    }
  }

  void Decide() {
    ReportAll();
    const auto decisions = sharing_.Decide(now_);
    for (const auto& lease : decisions.changes) {
      Client& c = clients_[lease.share];
      const bool opened = lease.open && !c.open;
      const bool closed = !lease.open && c.open;
      c.open = lease.open;
      c.contended = lease.contended;
      ++c.sequence;
      const size_t i = lease.share;
      if (opened) {
        ++switches_;
        c.wanted_sent = false;
        At(now_ + Delay(), [this, i] { Pump(i); });
      } else if (closed) {
        c.drain_due = true;
        if (c.queued_ns == 0 && !c.stuck) SendDrained(i);
        At(now_, [this, i] { Pump(i); });
      } else {
        At(now_ + Delay(), [this, i] { Pump(i); });
      }
    }
    if (decisions.next_ns == TimeSharing::kNever) return;
    const uint64_t turn = ++deadline_;
    At(std::max(decisions.next_ns, now_ + 1) + Delay() / 4, [this, turn] {
      if (turn == deadline_) Decide();
    });
  }

  std::mt19937 random_;
  int64_t delay_max_ns_;
  TimeSharingOptions options_;
  TimeSharing sharing_;
  std::vector<Client> clients_;
  std::priority_queue<Event> events_;
  std::deque<Kernel> queue_;
  uint64_t order_ = 0;
  uint64_t deadline_ = 0;
  int64_t now_ = 0;
  int running_ = -1;
  int64_t running_since_ = 0;
  int64_t wasted_ns_ = 0;
  int64_t longest_wait_ns_ = 0;
  int64_t switches_ = 0;
};

}  // namespace prorata::policy::testing
