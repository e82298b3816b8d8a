#pragma once

// Writes the agent's state behind the loop's back: on a thread of its own, the newest only where
// several came while one was being written. Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/state_file.h"
#include "agent/runtime/worker.h"
#include "base/result.h"

namespace prorata::agent {

// For whoever asked for what Save could not save: why, what holds now, and what to do.
Error NotSaved(const Error& why, const std::string& what_holds);

class StateWriter {
 public:
  using Then = std::function<void(const Status&)>;

  // `state`: what there is to be saved when it is called; only from within the calls below.
  // `slow_ms`: for tests, so much longer takes each writing.
  StateWriter(boost::asio::io_context& loop, std::string path, std::function<SavedState()> state,
              uint32_t slow_ms);
  // What was to be saved by Save is written first, if the disk lets it be (worker.h).
  ~StateWriter();

  // What there is now. `then` is called on the loop when this state or a later one is on the disk,
  // or with what kept it from there ("state").
  void Save(Then then);
  // The same, for nobody who waits: what fails is logged.
  void SaveAndLog();
  // The same within 50 ms, once for all who ask meanwhile.
  void SaveSoon();
  // SaveSoon was called, and nothing was saved since.
  bool pending() const { return armed_; }

  // Before the loop runs: waits until what there is now is on the disk. "state".
  Status SaveNow();

  // For how long the disk has not answered; 0: it has, or was asked a moment ago.
  int64_t UnansweredNs() const;

 private:
  void Start();
  std::function<Status()> WriteNext();

  const std::string path_;
  const std::function<SavedState()> state_;
  const uint32_t slow_ms_;
  bool under_way_ = false;
  std::optional<std::string> next_;
  std::vector<Then> waiting_;  // for what is being written
  std::vector<Then> next_waiting_;
  bool armed_ = false;
  boost::asio::steady_timer timer_;
  Worker worker_;
};

}  // namespace prorata::agent
