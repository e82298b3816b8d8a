#include "client/compute/compute.h"

#include "client/compute/launch.h"
#include "client/compute/lease_report.h"

namespace prorata::client {

constinit DeviceCompute g_compute[shm::kMaxDevices];
constinit Estimates g_estimates;

namespace {

// What the helper costs at most: a poll waits so many times what the last one took.
constexpr int64_t kCostFactor = 20;
constexpr int64_t kLongestCostNs = 20'000'000;

template <typename F>
void ForWorks(F&& f) {
  for (ContextWork* work = g_works.load(); work != nullptr; work = work->next) f(work);
}

// Changes `closing` of a context's works, if it is `from`.
void Mark(CUcontext context, uint32_t from, uint32_t to) {
  ForWorks([&](ContextWork* work) {
    uint32_t expected = from;
    if (work->context.load() == context) work->closing.compare_exchange_strong(expected, to);
  });
}

std::atomic<uint32_t> g_endings{kFirstEnding};

// Where a thread has left the gate by siglongjmp it is counted there until it comes again.
__thread AtGate t_at_gate[shm::kMaxDevices] __attribute__((tls_model("initial-exec"))) = {};

}  // namespace

void AwaitLaunch(uint32_t device) {
  LaunchWait wait(device, t_at_gate[device]);
  for (;;) {
    const LaunchWait::Next next = wait.Step(g_world);
    t_at_gate[device] = wait.at_gate();
    switch (next.what) {
      case LaunchWait::Do::kPass:
        return;
      case LaunchWait::Do::kAwaitLease:
        FutexWait(&LimitsOf(device).lease, next.lease, next.timeout_ns);
        break;
      case LaunchWait::Do::kAwaitBacklog: {
        const std::atomic<uint32_t> never{0};
        FutexWait(&never, 0, next.timeout_ns);
        break;
      }
    }
  }
}

void LeaveGates(uint32_t devices) {
  for (uint32_t i = 0; devices >> i != 0; ++i) {
    if ((devices >> i & 1) != 0) g_compute[i].launching.fetch_sub(1);
  }
}

void PassGates(uint32_t devices) {
  for (;;) {
    bool open = true;
    for (uint32_t i = 0; devices >> i != 0; ++i) {
      if ((devices >> i & 1) != 0) AwaitLaunch(i);
    }
    for (uint32_t i = 0; devices >> i != 0; ++i) {
      if ((devices >> i & 1) != 0) g_compute[i].launching.fetch_add(1);
    }
    for (uint32_t i = 0; devices >> i != 0; ++i) {
      if ((devices >> i & 1) != 0) open = open && LeaseAllows(g_world, i);
    }
    if (open) return;
    LeaveGates(devices);
  }
}

int64_t TickCompute(int64_t now_ns) {
  const int64_t before_ns = ThreadCpuNs();
  const bool lost = HeartbeatLost(g_world);
  int64_t poll_again_ns = LeaseWatch::kIdlePollNs;
  for (uint32_t device = 0; device < g_share.device_count; ++device) {
    poll_again_ns = Min(poll_again_ns, TickDevice(g_world, device, now_ns, lost));
  }
  const int64_t cost_ns = Min((ThreadCpuNs() - before_ns) * kCostFactor, kLongestCostNs);
  poll_again_ns = Max(poll_again_ns, cost_ns);
  for (uint32_t device = 0; device < g_share.device_count; ++device) {
    UsageOf(device).looks_by_ns.store(now_ns + poll_again_ns);
  }
  return poll_again_ns;
}

void LeasesRejoined() {
  for (DeviceCompute& compute : g_compute) compute.wanted_plus_1.store(0);
}

uint32_t WorkOfContextEnding(CUcontext context) {
  const uint32_t ending = g_endings.fetch_add(1);
  Mark(context, kOpenWork, ending);
  Mark(context, kPausedWork, ending);
  ForgetStreamCache();
  return ending;
}

void WorkOfContextStays(uint32_t ending) {
  ForWorks([&](ContextWork* work) {
    uint32_t expected = ending;
    work->closing.compare_exchange_strong(expected, kOpenWork);
  });
}

void WorkOfContextGone(uint32_t ending) {
  ForWorks([&](ContextWork* work) {
    if (work->closing.load() != ending) return;
    Tracker().Discard(work);
    DropStreamsOf(work);
    work->closing.store(kOpenWork);
  });
  ForgetStreamCache();
}

void WorkOfContextPausing(CUcontext context) { Mark(context, kOpenWork, kPausedWork); }

void WorkOfContextGoesOn(CUcontext context) { Mark(context, kPausedWork, kOpenWork); }

// Gives up after so many naps instead of a time: where the process as a whole was stopped or had no
// processor, the time is over before a thread of it could go on.
void AwaitUsersOfWork(CUcontext context) {
  int naps = 1'000;
  ForWorks([&](ContextWork* work) {
    while (work->context.load() == context && work->closing.load() != kOpenWork &&
           work->users.load() != 0 && naps > 0) {
      const std::atomic<uint32_t> never{0};
      FutexWait(&never, 0, 100'000);
      --naps;
    }
  });
}

}  // namespace prorata::client
