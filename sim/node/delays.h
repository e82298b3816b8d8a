#pragma once

// What the world around the decisions takes: distributions of wake-ups, calls and messages. None of
// these values has been measured on a machine with a GPU; docs/design/simulation.md says where they
// are from. All in nanoseconds.

#include "sim/node/random.h"

namespace prorata::simulation {

struct Delays {
  // A sleeping thread that is woken runs again after least + exponential(mean); now and then its
  // processor was busy, and it takes up to late_ns more.
  int64_t wake_least_ns = 3'000;
  int64_t wake_mean_ns = 10'000;
  double wake_late = 0.005;
  int64_t wake_late_ns = 1'000'000;
  // A time-out comes late by up to the kernel's timer slack (50 us is its default for a thread).
  int64_t timer_slack_ns = 50'000;
  // A running thread loses its processor between two steps of what it does.
  double preempted = 0.0001;
  int64_t preempted_ns = 3'000'000;  // up to
  // Calls of the driver, on the host.
  int64_t launch_ns = 2'500;
  int64_t graph_launch_ns = 5'000;
  int64_t record_ns = 1'000;
  int64_t query_ns = 300;
  int64_t create_event_ns = 1'000;
  int64_t synchronize_ns = 1'000;
  int64_t create_context_ns = 20'000'000;
  int64_t arm_timer_ns = 700;  // the helper's, by another thread
  // A message between processes is readable after this, and its reader must wake; the agent's
  // handling of one takes so long.
  int64_t message_ns = 4'000;
  int64_t handle_ns = 6'000;

  int64_t Wake(Random& random) const {
    int64_t ns = wake_least_ns + random.Exponential(wake_mean_ns);
    if (random.Chance(wake_late)) ns += random.Between(0, wake_late_ns);
    return ns;
  }
  int64_t TimedOut(Random& random) const {
    return random.Between(0, timer_slack_ns) + Wake(random);
  }
};

// What goes wrong, at random.
struct Mishaps {
  double kills_per_s = 0;          // of a program, anywhere; another takes its place
  double program_stops_per_s = 0;  // SIGSTOP of a program for up to stop_ns, or ten times that
  double agent_stops_per_s = 0;
  double agent_kills_per_s = 0;  // and a new one after up to stop_ns
  double lies_per_s = 0;         // the last program says what is not so
  int64_t stop_ns = 300'000'000;
  bool long_stops = false;  // of programs
};

}  // namespace prorata::simulation
