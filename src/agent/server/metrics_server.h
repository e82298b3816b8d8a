#pragma once

// Offers the metrics over HTTP (`prorata agent --metrics`): GET /metrics, and nothing else. On the
// agent's loop, so no thread but the agent's one looks at its state.
//
// Whoever can connect may be anybody: a request has at most 8 KiB and ten seconds, there are at
// most 16 connections (more wait in the queue of the socket), and the text is made at most every
// tenth of a second however often it is asked for.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "agent/config/metrics_address.h"
#include "base/result.h"

namespace prorata::agent {

class MetricsServer {
 public:
  // Called on the loop; gives the text to `done`, now or later, on the loop too.
  using MakeText = std::function<void(std::function<void(std::string)> done)>;
  MetricsServer(boost::asio::io_context& loop, MakeText make_text);
  ~MetricsServer();

  // Listens. "metrics_listen".
  Status Start(const agent::MetricsAddress& where);
  // Where, with the port that was given: "http://127.0.0.1:9400/metrics".
  const std::string& url() const { return url_; }

 private:
  struct State;
  class Session;
  static void Accept(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::string url_;
};

}  // namespace prorata::agent
