#pragma once

// Overhead that the audit found a moment ago may be gone by now, or be charged as what it is. A
// request for memory that would be refused for it waits until the device was looked at again.
//
// Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "agent/memory/memory_audit.h"
#include "agent/memory/memory_requests.h"
#include "agent/runtime/devices.h"
#include "agent/share/shares.h"
#include "base/clock.h"

namespace prorata::agent {

class Rechecks {
 public:
  // All must outlive it.
  Rechecks(boost::asio::io_context& loop, const Shares& shares, Devices& devices,
           MemoryAudit& audit);

  // Serves a request that need not wait any more. Set before the first Hold.
  std::function<void(Share& share, MemoryRequests::Request request)> ask;

  // True: the request was taken, and `ask` is called with it within 100 ms, unless its share has
  // ended. False: no need.
  bool Hold(Share& share, MemoryRequests::Request& request);

 private:
  struct OnDevice {
    bool under_way = false;
    std::deque<std::pair<uint64_t, MemoryRequests::Request>> waiting;  // by share
  };
  bool IsNeeded(Share& share, const MemoryRequests::Request& request, const OnDevice& on) const;
  void Serve(size_t device);

  const Shares& shares_;
  Devices& devices_;
  MemoryAudit& audit_;
  std::vector<OnDevice> on_;
  boost::asio::steady_timer timer_;
  int64_t last_ns_ = 0;
};

}  // namespace prorata::agent
