#pragma once

// Contexts of one member that run at once are charged once. Pure.
//
// Events of two contexts cannot be compared. What is known of several contexts at work at once is
// that together they cannot have used more than the host's time that passed since the first of them
// began. The device slices its time between them, so each measures the others' time too, and
// without gaps that bound is the union. Gaps while one of them has work that does not run are not
// known: then a little is charged twice still.

#include <atomic>
#include <cstdint>

namespace prorata::client {

// One for all contexts of a member on a device. Thread-safe.
class ContextsOnce {
 public:
  // A context has fenced work that is not done, since `began_ns`; or has none any more.
  void Begin(int64_t began_ns) {
    if (at_work_.fetch_add(1) != 0) {
      several_.store(true);
      return;
    }
    several_.store(false);
    int64_t until_ns = charged_until_ns_.load();
    while (until_ns < began_ns && !charged_until_ns_.compare_exchange_weak(until_ns, began_ns)) {
    }
  }
  void End() { at_work_.fetch_sub(1); }
  uint32_t at_work() const { return at_work_.load(std::memory_order_relaxed); }

  // What of a charge was not charged yet. `now`: the host's time; not asked for one context alone.
  template <typename Now>
  uint64_t Take(uint64_t busy_ns, Now&& now) {
    if (!several_.load()) {
      charged_until_ns_.fetch_add(static_cast<int64_t>(busy_ns));
      return busy_ns;
    }
    const int64_t now_ns = now();
    int64_t until_ns = charged_until_ns_.load();
    for (;;) {
      const int64_t left_ns = now_ns > until_ns ? now_ns - until_ns : 0;
      const auto charge_ns =
          static_cast<int64_t>(busy_ns) < left_ns ? static_cast<int64_t>(busy_ns) : left_ns;
      if (charged_until_ns_.compare_exchange_weak(until_ns, until_ns + charge_ns)) {
        return static_cast<uint64_t>(charge_ns);
      }
    }
  }

 private:
  std::atomic<uint32_t> at_work_{0};
  std::atomic<bool> several_{false};  // have had work at once since there was none last
  std::atomic<int64_t> charged_until_ns_{0};
};

}  // namespace prorata::client
