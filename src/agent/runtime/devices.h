#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "agent/runtime/worker.h"
#include "base/clock.h"
#include "base/result.h"
#include "driver/nvml.h"

namespace prorata::agent {

// The devices of this machine as NVML shows them, and what was learned about them.
//
// NVML is called on a worker thread, for it may take any time: a figure is asked for, and comes to
// the loop when it comes. Every figure is of a call that began after it was asked for. The queue
// has a bound: of one figure of one device at most one call is under way, and one is to follow for
// all who asked meanwhile.
class Devices {
 public:
  // As `nvml`'s answer, and for how long it was waited for.
  template <typename T>
  struct Reading {
    Result<T> value;
    int64_t took_ns = 0;
    // Too old to be set beside what the ledger says now, where a change between would do harm.
    bool late() const { return took_ns > kLateNs; }
  };
  template <typename T>
  using Then = std::function<void(const Reading<T>&)>;
  // Bytes by process, as they are now. A process without a figure is there with nothing.
  using ByProcess = std::map<pid_t, std::optional<uint64_t>>;

  using TimeSamples = std::vector<driver::NvmlTimeSample>;

  static constexpr int64_t kLateNs = 250 * kNsPerMs;
  // A driver that has not answered for this long is slow, and an event says so.
  static constexpr int64_t kSlowNs = kNsPerS;

  // `nvml` must outlive the process if a call of it does not return (worker.h).
  Devices(boost::asio::io_context& loop, driver::Nvml& nvml);

  size_t count() const { return nvml_.Devices().size(); }
  const driver::NvmlDevice& operator[](size_t device) const { return nvml_.Devices()[device]; }
  std::optional<size_t> Find(std::string_view uuid) const;
  // As a person names it to an option of the agent, by index or UUID. "unknown_gpu".
  Result<size_t> Named(std::string_view gpu, std::string_view option) const;

  void ReadMemory(size_t device, Then<driver::NvmlMemory> then);
  void ReadProcesses(size_t device, Then<ByProcess> then);
  // Samples after `since_us`. One asker at a time: others would get what the first asked for.
  void ReadTimeSamples(size_t device, uint64_t since_us, Then<TimeSamples> then);
  // Reads how full all devices are. `then` is called when all have answered or after 200 ms; at
  // once where NVML has not answered for kSlowNs: nobody waits for it, and nothing piles up before
  // it.
  void Refresh(std::function<void()> then);
  // As it was read last, by whomever.
  uint64_t LastUsedBytes(size_t device) const { return used_bytes_[device]; }

  // For how long NVML has not answered; 0: it has, or was asked less than kSlowNs ago.
  int64_t UnansweredNs() const;

  // What a context takes on the device: the most of the last few that were measured; before the
  // first, a guess that is rather too large (what is too much is given back as soon as one was
  // measured).
  uint64_t ContextOverhead(size_t device) const;
  void LearnContextOverhead(size_t device, uint64_t bytes);
  // What the agent before us published that a context takes: its guess, or what it had learned.
  void AdoptContextOverhead(size_t device, uint64_t bytes);

 private:
  template <typename T>
  struct Asked {
    Then<T> then;
    int64_t since_ns;
  };
  template <typename T>
  struct Line {
    std::vector<Asked<T>> under_way;
    std::vector<Asked<T>> next;
  };
  template <typename T>
  void Ask(Line<T>& line, std::function<Result<T>()> read, Then<T> then);
  template <typename T>
  void Start(Line<T>& line, std::function<Result<T>()> read);

  boost::asio::io_context& loop_;
  driver::Nvml& nvml_;
  std::vector<std::deque<uint64_t>> learned_;
  std::vector<uint64_t> used_bytes_;
  std::vector<Line<driver::NvmlMemory>> memory_;
  std::vector<Line<ByProcess>> processes_;
  std::vector<Line<TimeSamples>> samples_;
  Worker worker_;
};

}  // namespace prorata::agent
