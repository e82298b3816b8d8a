#include "bench/memory_waiting/experiment.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <random>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"

namespace prorata::bench {
namespace {

using policy::MemoryAdmission;

struct Size {
  uint64_t bytes;
  int64_t work_ns;
};
constexpr std::array<Size, 6> kSizes = {{{128 * kMiB, 5 * kNsPerS},
                                         {256 * kMiB, 10 * kNsPerS},
                                         {512 * kMiB, 15 * kNsPerS},
                                         {kGiB, 25 * kNsPerS},
                                         {2 * kGiB, 35 * kNsPerS},
                                         {4 * kGiB, 45 * kNsPerS}}};
constexpr int64_t kPaceNs = 5 * kNsPerS;

class Experiment {
 public:
  Experiment(const MemoryAdmission::Options& options, int containers, uint64_t seed)
      : admission_({5 * kGiB}, options) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < containers; ++i) {
      // Not the library's distributions: their results differ between libraries.
      const Size& size = kSizes[random() % kSizes.size()];
      const auto work = size.work_ns / 2 +
                        static_cast<int64_t>(random() % 1'000'001) * (size.work_ns / 1'000'000);
      containers_.push_back({.bytes = size.bytes, .work_ns = work});
      At(i * kPaceNs, [this, i] { Arrive(i); });
    }
  }

  Outcome Run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ns_ = event.when_ns;
      event.what();
    }
    Outcome outcome;
    for (const Container& container : containers_) {
      PRORATA_CHECK(container.done);
      const double suspended_s = static_cast<double>(container.suspended_ns) / kNsPerS;
      outcome.mean_suspended_s += suspended_s / static_cast<double>(containers_.size());
      outcome.longest_wait_s = std::max(outcome.longest_wait_s, suspended_s);
    }
    outcome.makespan_s = static_cast<double>(now_ns_) / kNsPerS;
    return outcome;
  }

 private:
  struct Container {
    uint64_t bytes;
    int64_t work_ns;
    int64_t asked_ns = 0;
    int64_t suspended_ns = 0;
    bool all = false;  // what it asked for last was all of its memory
    bool done = false;
  };
  struct Event {
    int64_t when_ns;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return when_ns != other.when_ns ? when_ns > other.when_ns : order > other.order;
    }
  };

  void At(int64_t when_ns, std::function<void()> what) {
    events_.push({when_ns, ++order_, std::move(what)});
  }

  void Arrive(int i) {
    PRORATA_CHECK(admission_.Add(
        Key(i), {.limit_bytes = {containers_[i].bytes}, .on_full = policy::OnFull::kWait}));
    Ask(i, containers_[i].bytes / 2);
  }

  void Ask(int i, uint64_t bytes) {
    containers_[i].asked_ns = now_ns_;
    containers_[i].all = bytes == containers_[i].bytes;
    const uint64_t ticket = ++tickets_;
    if (admission_.Request(Key(i), ticket, 0, bytes, now_ns_) == MemoryAdmission::Verdict::kGiven) {
      return GoOn(i);
    }
    waiting_.emplace_back(ticket, i);
    Serve();
  }

  void GoOn(int i) {
    Container& container = containers_[i];
    container.suspended_ns += now_ns_ - container.asked_ns;
    if (!container.all) {
      At(now_ns_ + container.work_ns / 10, [this, i] { Ask(i, containers_[i].bytes); });
    } else {
      At(now_ns_ + container.work_ns - container.work_ns / 10, [this, i] {
        containers_[i].done = true;
        admission_.Remove(Key(i));
        Serve();
      });
    }
  }

  void Serve() {
    for (const uint64_t ticket : admission_.Decide(now_ns_)) {
      const auto found = std::ranges::find(waiting_, ticket, &std::pair<uint64_t, int>::first);
      PRORATA_CHECK(found != waiting_.end());
      const int i = found->second;
      waiting_.erase(found);
      GoOn(i);
    }
  }

  static uint64_t Key(int i) { return static_cast<uint64_t>(i) + 1; }

  MemoryAdmission admission_;
  std::vector<Container> containers_;
  std::vector<std::pair<uint64_t, int>> waiting_;
  std::priority_queue<Event> events_;
  uint64_t order_ = 0;
  uint64_t tickets_ = 0;
  int64_t now_ns_ = 0;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

Outcome RunExperiment(const MemoryAdmission::Options& options, int containers, uint64_t seed) {
  MemoryAdmission::Options seeded = options;
  seeded.seed = seed;
  return Experiment(seeded, containers, seed).Run();
}

std::vector<Row> RunAll(const std::vector<int>& containers, uint64_t seeds) {
  constexpr std::pair<policy::WaitOrder, const char*> kPolicies[] = {
      {policy::WaitOrder::kFifo, "fifo"},
      {policy::WaitOrder::kBestFit, "best-fit"},
      {policy::WaitOrder::kRecent, "recent"},
      {policy::WaitOrder::kRandom, "random"}};
  std::vector<Row> rows;
  for (const int count : containers) {
    for (const auto& [order, name] : kPolicies) {
      MemoryAdmission::Options options;
      options.order = order;
      std::vector<double> makespan, suspended, longest;
      for (uint64_t seed = 1; seed <= seeds; ++seed) {
        const Outcome outcome = RunExperiment(options, count, seed);
        makespan.push_back(outcome.makespan_s);
        suspended.push_back(outcome.mean_suspended_s);
        longest.push_back(outcome.longest_wait_s);
      }
      rows.push_back({count, name, Median(makespan), Median(suspended), Median(longest)});
    }
  }
  return rows;
}

}  // namespace prorata::bench
