#pragma once

// Writes the agent's state behind the loop's back: on a thread of its own, the newest only where
// several came while one was being written. Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/runtime/worker.h"
#include "base/result.h"

namespace prorata::agent {

class StateWriter {
 public:
  using Then = std::function<void(const Status&)>;

  // `slow_ms`: for tests, so much longer takes each writing.
  StateWriter(boost::asio::io_context& loop, std::string path, uint32_t slow_ms);
  // What was given is written first, if the disk lets it be (worker.h).
  ~StateWriter();

  // `then` is called on the loop when this state or a later one is on the disk, or with what kept
  // it from there ("state").
  void Save(std::string text, Then then);

  // Before the loop runs: waits until this state is on the disk. "state".
  Status SaveNow(const std::string& text);

  // For how long the disk has not answered; 0: it has, or was asked a moment ago.
  int64_t UnansweredNs() const;

 private:
  void Start();
  std::function<Status()> WriteNext();

  const std::string path_;
  const uint32_t slow_ms_;
  bool under_way_ = false;
  std::optional<std::string> next_;
  std::vector<Then> waiting_;  // for what is being written
  std::vector<Then> next_waiting_;
  Worker worker_;
};

}  // namespace prorata::agent
